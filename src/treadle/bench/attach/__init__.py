"""`treadle bench attach` and `loop`: the effect of an attachment on applications, and its cost."""
