"""Parts of `benchmarks/against_rival.py`: the sweeps, both programs, and what is seen of them."""
