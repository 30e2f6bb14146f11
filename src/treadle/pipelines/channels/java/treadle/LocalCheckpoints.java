package treadle;

import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Spark's checkpoint files on a local disk, written without a forked process.
 *
 * <p>Hadoop's local file system runs {@code chmod} for every file it makes, which is most of what a small batch costs. Here a
 * file is written beside its place and then linked or renamed into it, one system call that either happens or does not: after a
 * kill -9 a file is whole or absent, and one that exists is not overwritten unless asked. As with Hadoop's, nothing is
 * forced to the disk, so a power failure may lose the last batches. Other file systems are left to Spark.
 */
public final class LocalCheckpoints extends FileSystemBasedCheckpointFileManager {
  private final boolean local;

  public LocalCheckpoints(Path path, Configuration configuration) {
    super(path, configuration);
    this.local = "file".equals(fs().getUri().getScheme());
  }

  @Override
  public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
    if (!local) {
      return super.createAtomic(path, overwrite);
    }
    File target = file(path);
    File beside = new File(target.getParentFile(), "." + target.getName() + "." + UUID.randomUUID() + ".tmp");
    try {
      return new Atomic(new BufferedOutputStream(new FileOutputStream(beside)), beside, target, overwrite);
    } catch (IOException error) {
      throw LocalCheckpoints.<RuntimeException>unchecked(error); // as Scala does, whose signatures name no exceptions
    }
  }

  @Override
  public void mkdirs(Path path) {
    if (!local) {
      super.mkdirs(path);
      return;
    }
    try {
      Files.createDirectories(file(path).toPath());
    } catch (IOException error) {
      throw LocalCheckpoints.<RuntimeException>unchecked(error);
    }
  }

  @Override
  public boolean exists(Path path) {
    return local ? file(path).exists() : super.exists(path);
  }

  private static File file(Path path) {
    return new File(path.toUri().getPath());
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E unchecked(Throwable error) throws E {
    throw (E) error;
  }

  private static final class Atomic extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final File beside;
    private final File target;
    private final boolean overwrite;
    private boolean ended = false;

    Atomic(OutputStream stream, File beside, File target, boolean overwrite) {
      super(stream);
      this.beside = beside;
      this.target = target;
      this.overwrite = overwrite;
    }

    @Override
    public synchronized void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      try {
        super.close();
        if (overwrite) {
          Files.move(beside.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
        } else {
          link();
        }
        Files.deleteIfExists(new File(target.getParentFile(), "." + target.getName() + ".crc").toPath()); // of Hadoop, now wrong
      } catch (java.nio.file.FileAlreadyExistsException taken) {
        throw new FileAlreadyExistsException("Failed to rename temp file " + beside + " to " + target + " because file exists");
      } finally {
        Files.deleteIfExists(beside.toPath());
      }
    }

    private void link() throws IOException {
      try {
        Files.createLink(target.toPath(), beside.toPath());
      } catch (java.nio.file.FileAlreadyExistsException taken) {
        throw taken;
      } catch (UnsupportedOperationException | java.nio.file.FileSystemException none) { // a file system without hard links
        if (target.exists()) {
          throw new java.nio.file.FileAlreadyExistsException(target.getPath());
        }
        Files.move(beside.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
      }
    }

    @Override
    public synchronized void cancel() {
      if (ended) {
        return;
      }
      ended = true;
      try {
        super.close();
        Files.deleteIfExists(beside.toPath());
      } catch (IOException left) {
        beside.deleteOnExit(); // a leftover is never read
      }
    }
  }
}
