"""One run: its state, its rules, its history."""
