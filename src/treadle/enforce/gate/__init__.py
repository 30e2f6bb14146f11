"""Who may run now: a gate of grants and slots for batches that Treadle starts or holds back (Haren, section 4)."""
