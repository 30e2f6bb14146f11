"""Policies made of other policies: one for each class of queries, and weighted mixes."""
