"""The store on PostgreSQL: several nodes, one truth."""
