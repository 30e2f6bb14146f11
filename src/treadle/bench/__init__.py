"""Experiments and what they cost: comparisons of policies, and the speed of Treadle itself."""
