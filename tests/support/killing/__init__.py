"""Sweeps in processes that die at a step of the test's choice."""
