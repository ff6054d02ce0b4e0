"""The pulse: parked pollers, deadlines, and readers that wait for news."""
