"""What perdure offers beyond running workflows: one folder per feature."""
