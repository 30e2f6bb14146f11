package treadle;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A channel's folder as a log of rows: which segments are visible, and how new ones become so.
 *
 * <p>The format is described in the Python module {@code treadle.pipelines.channels.log}, which reads and writes it too.
 */
final class Segments {
  static final class Segment implements Comparable<Segment>, java.io.Serializable {
    final String file;
    final long first;
    final long rows;
    final long oldest;
    final long mean;
    final long epoch;

    Segment(String file, long first, long rows, long oldest, long mean, long epoch) {
      this.file = file;
      this.first = first;
      this.rows = rows;
      this.oldest = oldest;
      this.mean = mean;
      this.epoch = epoch;
    }

    long end() {
      return first + rows;
    }

    @Override
    public int compareTo(Segment other) {
      int order = Long.compare(first, other.first);
      return order != 0 ? order : Long.compare(rows, other.rows);
    }
  }

  private static final Pattern NAME = Pattern.compile("([0-9]{20})-([0-9]+)-(-?[0-9]+)-(-?[0-9]+)-(-?[0-9]+)\\.arrow");

  private Segments() {}

  /** The segments without a gap from the first one on; what is behind a gap is not there yet. */
  static List<Segment> visible(String folder) {
    while (true) {
      List<Segment> all = all(folder);
      int count = run(all);
      // Deletion is oldest first. So a gap is one only if the segment before it is still there: otherwise others were deleted
      // while the folder was being listed.
      if (count == all.size() || new File(all.get(count - 1).file).exists()) {
        return new ArrayList<Segment>(all.subList(0, count));
      }
    }
  }

  private static List<Segment> all(String folder) {
    String[] names = new File(folder).list();
    if (names == null) {
      throw new IllegalStateException("channel " + folder + " was deleted");
    }
    List<Segment> all = new ArrayList<Segment>();
    for (int i = 0; i < names.length; i++) {
      Segment segment = parse(folder, names[i]);
      if (segment != null) {
        all.add(segment);
      }
    }
    Collections.sort(all);
    return all;
  }

  private static int run(List<Segment> all) {
    int count = 0;
    while (count < all.size() && (count == 0 || all.get(count).first == all.get(count - 1).end())) {
      count++;
    }
    return count;
  }

  static long end(String folder) {
    List<Segment> segments = visible(folder);
    return segments.isEmpty() ? 0 : segments.get(segments.size() - 1).end();
  }

  /** The segments that hold rows of [start, end). */
  static List<Segment> between(String folder, long start, long end) {
    List<Segment> found = new ArrayList<Segment>();
    long covered = start;
    for (Segment segment : visible(folder)) {
      if (segment.first < end && segment.end() > start) {
        if (segment.first > covered) {
          break;
        }
        found.add(segment);
        covered = segment.end();
      }
    }
    if (covered < end) {
      throw new IllegalStateException("channel " + folder + " lacks rows " + covered + " to " + end
          + ": they were deleted, or the checkpoint is of another channel");
    }
    return found;
  }

  /** Make the parts of an epoch visible at once: the first one, which closes the gap, last. */
  static void publish(String folder, long epoch, List<ChannelWrite.Part> parts, long oldest, long mean) throws IOException {
    List<Segment> segments = visible(folder);
    Segment last = segments.isEmpty() ? null : segments.get(segments.size() - 1);
    if (last != null && last.epoch >= epoch) { // committed before a crash
      for (ChannelWrite.Part part : parts) {
        Files.deleteIfExists(new File(part.file).toPath());
      }
      return;
    }
    Set<String> shown = new HashSet<String>();
    for (Segment segment : segments) {
      shown.add(segment.file);
    }
    for (Segment hidden : all(folder)) { // of an attempt that failed half-way, or twice the same: its parts must not meet ours
      if (last == null || hidden.first >= last.first && !shown.contains(hidden.file)) {
        Files.deleteIfExists(new File(hidden.file).toPath());
      }
    }
    if (last == null && parts.size() > 1) { // without a beginning, the last part alone would look like one
      Files.write(new File(folder, "00000000000000000000-0-0-0--1.arrow").toPath(), new byte[0]);
    }
    long[] first = new long[parts.size()];
    long next = last == null ? 0 : last.end();
    for (int i = 0; i < parts.size(); i++) {
      first[i] = next;
      next += parts.get(i).rows;
    }
    for (int i = parts.size() - 1; i >= 0; i--) {
      ChannelWrite.Part part = parts.get(i);
      String name = String.format("%020d-%d-%d-%d-%d.arrow", new Object[] {
          Long.valueOf(first[i]), Long.valueOf(part.rows), Long.valueOf(part.born > 0 ? part.oldest : oldest),
          Long.valueOf(part.born > 0 ? part.mean() : mean), Long.valueOf(epoch)});
      Files.move(new File(part.file).toPath(), new File(folder, name).toPath(), StandardCopyOption.ATOMIC_MOVE);
    }
  }

  static void done(String folder, String consumer, long row) {
    try {
      Path target = new File(folder, "positions/" + consumer).toPath();
      Path fresh = new File(folder, "positions/.tmp-" + consumer).toPath();
      Files.write(fresh, Long.toString(row).getBytes(StandardCharsets.US_ASCII));
      Files.move(fresh, target, StandardCopyOption.ATOMIC_MOVE);
    } catch (NoSuchFileException error) {
      throw new IllegalStateException("channel " + folder + " was deleted");
    } catch (IOException error) {
      throw new IllegalStateException("channel " + folder + ": can't record the position of " + consumer, error);
    }
  }

  private static Segment parse(String folder, String name) {
    Matcher field = NAME.matcher(name);
    if (!field.matches()) {
      return null;
    }
    try {
      return new Segment(folder + "/" + name, Long.parseLong(field.group(1)), Long.parseLong(field.group(2)),
          Long.parseLong(field.group(3)), Long.parseLong(field.group(4)), Long.parseLong(field.group(5)));
    } catch (NumberFormatException foreign) {
      return null;
    }
  }
}
