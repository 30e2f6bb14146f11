"""Which hop may run now: a gate that grants slots for batches that Treadle starts or holds back (Haren, section 4)."""
