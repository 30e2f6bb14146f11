"""Linear Road (Arasu et al., VLDB 2004) as Lachesis runs it (Middleware '21): variable tolls on expressways."""
