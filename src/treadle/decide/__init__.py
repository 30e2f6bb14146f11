"""Decide, the second step of the loop: from the metrics of a round to the priorities it suggests."""
