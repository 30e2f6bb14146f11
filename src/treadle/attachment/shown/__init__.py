"""What an attachment shows of itself: reports, and what it publishes for `treadle top` and other processes."""
