"""Conversations: runs of one app that share a session label."""
