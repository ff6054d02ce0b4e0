"""The beat: load, decide, match, commit once, then answer and wake."""
