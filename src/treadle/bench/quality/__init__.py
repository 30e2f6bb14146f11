"""`treadle bench quality`: the scenarios of Stream-Economics on a Spark cluster."""
