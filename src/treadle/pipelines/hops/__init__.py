"""One operator as a Spark query of its own: how it is built, and what is measured of it."""
