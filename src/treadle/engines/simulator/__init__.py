"""A simulated engine in virtual time, with the same loop, policies and enforcers as real engines."""
