"""What comes in: registered workflows, triggers, schedules, flow control, webhooks."""
