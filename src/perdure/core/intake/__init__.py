"""Intake: registered workflows, triggers, conditions, schedules, flow control, signatures."""
