package treadle;

import java.util.Arrays;

/**
 * The probability with which a row is kept, from its utility: |utility| / level, at least a floor and at most 1.
 *
 * <p>The level is the one at which the part to be kept is kept, by the utilities of the last rows. A utility of infinity has the
 * probability 1. The floor is above 0, so that every row has a weight: where rows that are always kept exceed the part to be
 * kept, the others are kept with the floor as well, and more is kept than was asked for, never less.
 */
final class Utility {
  /** The floor, as a part of the part to be kept. */
  static final double FLOOR = 0.1;

  private static final int SIZE = 4096;
  private static final int EVERY = 256;
  private static final int HALVINGS = 60;
  /** Finite utilities above this count as this, so that no sum of them is infinite. */
  private static final double LARGEST = 1e300;
  private final double[] last = new double[SIZE];
  private int count = 0;
  private int fresh = 0;
  private double keep = Double.NaN;
  private Scale scale = null;

  /** One that goes on from here by itself. */
  synchronized Utility copy() {
    Utility made = new Utility();
    System.arraycopy(last, 0, made.last, 0, SIZE);
    made.count = count;
    return made;
  }

  synchronized double probability(double utility, double keep) {
    double size = size(utility);
    last[count++ % SIZE] = size;
    if (count >= 2 * SIZE) { // the place stays the same; a count of all rows would overflow
      count -= SIZE;
    }
    if (keep != this.keep || ++fresh >= Math.min(EVERY, count / 2)) {
      this.keep = keep;
      fresh = 0;
      scale = scale(Arrays.copyOf(last, Math.min(count, SIZE)), keep);
    }
    return keep >= 1.0 ? 1.0 : scale.probability(size);
  }

  /** What a utility counts for: refunds as much as payments of that size, minus infinity as the least. */
  private static double size(double utility) {
    if (utility == Double.POSITIVE_INFINITY) {
      return utility;
    }
    return utility == Double.NEGATIVE_INFINITY ? 0.0 : Math.min(Math.abs(utility), LARGEST);
  }

  /** From the size of a utility to a probability. */
  static final class Scale {
    private final double level;
    private final double floor;

    Scale(double level, double floor) {
      this.level = level;
      this.floor = floor;
    }

    double probability(double size) {
      return size >= level && size > 0.0 ? 1.0 : Math.max(floor, size / level);
    }
  }

  /** The scale with which the mean probability of these sizes is `keep`, or more where the floor takes more. */
  static Scale scale(double[] sizes, double keep) {
    Arrays.sort(sizes);
    int finite = sizes.length;
    while (finite > 0 && Double.isInfinite(sizes[finite - 1])) {
      finite--;
    }
    int zeros = 0;
    while (zeros < finite && sizes[zeros] == 0.0) {
      zeros++;
    }
    double floor = FLOOR * keep;
    if (finite == 0) {
      return new Scale(Double.POSITIVE_INFINITY, floor);
    }
    double room = Math.max(keep * sizes.length - (sizes.length - finite), floor * finite);
    int positive = finite - zeros;
    if (positive + floor * zeros <= room) { // all that have a utility are kept, the rest of the room is for those of none
      return new Scale(Double.MIN_VALUE, zeros == 0 ? floor : Math.min(1.0, (room - positive) / zeros));
    }
    double[] sums = new double[finite + 1];
    for (int i = 0; i < finite; i++) {
      sums[i + 1] = sums[i] + sizes[i];
    }
    double low = sizes[zeros];
    double high = sizes[finite - 1] / floor;
    for (int i = 0; i < HALVINGS; i++) {
      double middle = Math.sqrt(low) * Math.sqrt(high);
      if (kept(sizes, sums, finite, middle, floor) >= room) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return new Scale(low, floor);
  }

  /** How many of the finite sizes, which are sorted, are kept at a level. */
  private static double kept(double[] sizes, double[] sums, int finite, double level, double floor) {
    int whole = first(sizes, finite, level);
    int least = first(sizes, whole, floor * level);
    return finite - whole + floor * least + (sums[whole] - sums[least]) / level;
  }

  /** The first of the sorted sizes before `end` that is at least as large as this; `end` if none is. */
  private static int first(double[] sizes, int end, double least) {
    int low = 0;
    int high = end;
    while (low < high) {
      int middle = (low + high) >>> 1;
      if (sizes[middle] < least) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
}
