"""Objectives with known optima, and what searches for them, for `benchmarks/optimizer.py`."""
