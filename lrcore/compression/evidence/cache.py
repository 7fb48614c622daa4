"""Where the measurements of evidence are kept on disk."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...files import cache_folder, cache_key
from ..factorise import Factorisation

# Options that came later, each with the default that measurements before it were made with: left
# out, so that these are found.
LATER = {"stored": "pairs", "qk": "centred"}


def cache_file(folder: str, factors: Factorisation, *parts: Any) -> Path:
    """The file of a measurement on these factors, in `folder` of the cache.

    parts: JSON-able; what the measurement depends on besides the calibration, the method with its
    options, and the slots.
    """
    slots = sorted((*slot, s.cost.full) for slot, s in factors.spectra.items())
    given = asdict(factors.options).items()
    options = sorted(item for item in given if item not in LATER.items())
    key = cache_key(factors.calibration.key, factors.method, options, *parts, slots)
    return cache_folder() / folder / f"{key}.json"
