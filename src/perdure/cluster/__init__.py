"""Several nodes on one PostgreSQL: hints, polls shared between nodes, messages, local sockets."""
