"""Policies that wrap another policy and adapt its priorities to what an enforcer needs."""
