"""Reads a configuration and the files that it names, and checks them before any work starts."""
