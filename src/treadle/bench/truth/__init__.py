"""`treadle bench truth`: what Treadle measures, against a count made independently of it."""
