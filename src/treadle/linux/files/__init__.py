"""Files that others may own: bounded reads, what a target may see, folders and locks that only one user can write."""
