"""Files that other users may own: bounded reads, files of other processes, trusted folders, locks, open files."""
