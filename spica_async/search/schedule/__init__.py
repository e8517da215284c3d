"""The state of one branch: what to ask for, what the optimizer observes, and when to stop."""
