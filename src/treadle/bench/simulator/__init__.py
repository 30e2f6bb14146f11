"""The papers' comparisons in the simulator."""
