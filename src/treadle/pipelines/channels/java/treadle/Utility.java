package treadle;

import java.util.Arrays;

/**
 * From what a row is of use to how likely it is kept: in proportion, min(1, use / level), with the level at which as much is
 * kept as is to be, by what the last rows were of use.
 */
final class Utility {
  private static final int SIZE = 4096;
  private static final int EVERY = 256;
  private final double[] last = new double[SIZE];
  private int count = 0;
  private int fresh = 0;
  private double keep = Double.NaN;
  private double level = 0.0;

  synchronized double probability(double use, double keep) {
    last[count++ % SIZE] = Math.max(use, 0.0);
    if (keep != this.keep || ++fresh >= Math.min(EVERY, count)) {
      this.keep = keep;
      fresh = 0;
      level = level(Arrays.copyOf(last, Math.min(count, SIZE)), keep);
    }
    if (keep >= 1.0 || use == Double.POSITIVE_INFINITY || level == 0.0) {
      return 1.0;
    }
    return Math.min(1.0, Math.max(use, 0.0) / level);
  }

  /** The level at which min(1, use / level) is `keep` on average. Those above it are kept whole, and paid for first. */
  static double level(double[] uses, double keep) {
    Arrays.sort(uses);
    double room = keep * uses.length;
    double below = 0.0;
    for (double use : uses) {
      below += Double.isInfinite(use) ? 0.0 : use;
    }
    for (int i = uses.length - 1; i >= 0; i--) {
      if (room <= 0.0) {
        return Double.POSITIVE_INFINITY;
      }
      if (!Double.isInfinite(uses[i])) {
        if (below / room >= uses[i]) {
          return below / room;
        }
        below -= uses[i];
      }
      room -= 1.0;
    }
    return 0.0;
  }
}
