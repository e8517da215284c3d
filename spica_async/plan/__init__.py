"""What a sweep will search, settled before it starts, and why it will not search more."""
