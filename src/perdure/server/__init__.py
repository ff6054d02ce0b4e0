"""The wiring: settings, assembly, lifespan."""
