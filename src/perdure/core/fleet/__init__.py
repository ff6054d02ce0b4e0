"""Workers: registrations, contracts, sessions, quotas and rollouts of queues."""
