"""Approvals: questions of runs to people, and their decisions."""
