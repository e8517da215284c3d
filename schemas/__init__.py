"""Pydantic models of everything that crosses a boundary: configuration, messages, events.

This package depends on pydantic alone, so that any program may speak to `spica_async` with it.
"""
