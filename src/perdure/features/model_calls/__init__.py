"""Model calls that the engine makes for runs, and what they use up."""
