"""Local activities: recorded afterwards, or prepared, run and reported by attempt."""
