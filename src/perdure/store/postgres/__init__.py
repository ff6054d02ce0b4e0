"""The store on PostgreSQL, which several nodes can share."""
