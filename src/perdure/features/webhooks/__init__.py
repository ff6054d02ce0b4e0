"""Webhooks: outgoing deliveries and incoming sources."""
