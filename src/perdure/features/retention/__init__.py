"""Retention: closed runs are removed when they are older than the settings allow."""
