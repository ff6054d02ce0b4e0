"""The disk: set-based load and commit, and reads that decide nothing."""
