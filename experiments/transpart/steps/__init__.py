"""The parts of the experiment; each has `measure` and `table`."""
