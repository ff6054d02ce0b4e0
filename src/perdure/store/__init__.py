"""The stores: set-based load and commit for the beat, and reads of committed data."""
