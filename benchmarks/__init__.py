"""Benchmarks of docs/benchmarks/; run them by `python -m benchmarks`."""

import sys
from pathlib import Path

# for `prose`, `train_demo` and `chromium`, which are scripts
sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))
