"""Workers: who they are and what they may take."""
