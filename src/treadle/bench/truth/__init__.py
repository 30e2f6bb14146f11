"""`treadle bench truth`: Treadle's figures, compared with counts made independently of them."""
