"""Policies around policies: classes of queries that each have their own, and weights for queries."""
