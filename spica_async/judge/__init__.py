"""A measurement becomes a verdict, a candidate, a rank, and in the end the sweep's result."""
