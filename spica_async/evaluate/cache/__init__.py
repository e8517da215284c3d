"""What sweeps have measured, kept to answer later sweeps that ask the same."""
