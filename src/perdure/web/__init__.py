"""The floor: HTTP without the domain. Knows no other room."""
