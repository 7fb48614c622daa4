"""What docs/benchmarks.md reports, one file per table; `scripts/benchmarks.py` runs them."""
