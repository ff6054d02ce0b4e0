"""One SQLite file, owned by one process."""
