"""Parts of `benchmarks/messaging.py`: what it measures, and the processes that take part."""
