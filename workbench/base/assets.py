"""JavaScript and CSS files of the page."""

import json
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
# Inside an installed package (see setup.py), next to the package in a clone.
FOLDER = _PACKAGE / "static"
if not FOLDER.is_dir():
    FOLDER = _PACKAGE.parent / "assets"
STYLE = FOLDER / "style.css"
# The parts of plotly.js for bars, lines and heatmaps (plotly.js-cartesian-dist-min on npm): a third
# of the size and of the start time.
PLOTLY_JS = FOLDER / "plotly" / "plotly-cartesian.min.js"


def script(*files: str, **values: Any) -> str:
    """Return the joined JavaScript of files, with $NAME replaced by values["NAME"] as JSON."""
    joined = "".join((FOLDER / name).read_text(encoding="utf-8") for name in files)
    for name, value in values.items():
        joined = joined.replace(f"${name}", json.dumps(value, allow_nan=False))
    return joined
