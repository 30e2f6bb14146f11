"""`treadle bench attach` and `loop`: what an attachment does for applications, and what it costs."""
