"""Requests out, results in: the coordinator's side of the bus."""
