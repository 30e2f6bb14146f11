"""Decide, the second step of the loop: policies derive priorities from the metrics of a round."""
