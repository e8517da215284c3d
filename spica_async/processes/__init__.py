"""Threads and processes of ours, and how neither keeps this one from its work or from its end."""
