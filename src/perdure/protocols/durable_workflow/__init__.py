"""The Durable Workflow protocol: workers pull tasks, clients command runs."""
