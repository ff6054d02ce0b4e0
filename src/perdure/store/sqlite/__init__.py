"""The store on SQLite: one file, owned by one process."""
