"""The analysis that the page opens with: of the form's defaults, shipped with the page, so that
nobody waits for it. scripts/first_analysis.py writes it.
"""

from typing import Any

import lrcore

from .assets import FOLDER
from .keys import DEFAULTS, calibration_key
from .store import Store

FILE = FOLDER / "first-analysis.safetensors"


def put(store: Store) -> list[Any]:
    """Put the analysis into a store that has none of these settings, and return its key."""
    key = calibration_key(DEFAULTS)
    if store.analysis_shown(key) is None:
        store.objects.put("analysis", key, lrcore.Analysis.read(FILE))
    return list(key)
