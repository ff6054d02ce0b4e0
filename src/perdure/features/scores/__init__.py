"""Scores of runs, datasets of cases, and evals that run a workflow for every case."""
