"""The rules of runs: values in, values out. No I/O, no clock, no randomness."""
