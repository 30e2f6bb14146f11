"""The compiled part of the simulator: its state is changed here, tuple by tuple."""
