"""Results on disk: runs, sweeps of many recipes, and their tables and reports."""
