"""Local activities: recorded afterwards, or prepared and reported attempt by attempt."""
