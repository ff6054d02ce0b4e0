"""The doors: wire to core and back, one folder per protocol."""
