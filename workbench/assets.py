"""The files that the page is made of beside Python: JavaScript, CSS, HTML."""

import json
from pathlib import Path
from string import Template
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
# Inside the package where it is installed (see setup.py), beside it in a clone.
FOLDER = _PACKAGE / "static"
if not FOLDER.is_dir():
    FOLDER = _PACKAGE.parent / "assets"
STYLE = FOLDER / "style.css"
# The parts of plotly.js that draw bars, lines and heatmaps: a third of the whole, in bytes and in
# the time until it runs. As npm has it (plotly.js-cartesian-dist-min).
PLOTLY_JS = FOLDER / "plotly" / "plotly-cartesian.min.js"


def script(*files: str, **values: Any) -> str:
    """The JavaScript of these files, one after the other.

    $NAME in it stands for values["NAME"] as JSON.
    """
    joined = "".join((FOLDER / name).read_text(encoding="utf-8") for name in files)
    for name, value in values.items():
        joined = joined.replace(f"${name}", json.dumps(value, allow_nan=False))
    return joined


def page(file: str, **values: str) -> str:
    """The HTML of a file, with $name in it replaced by values["name"], which is HTML already."""
    return Template((FOLDER / file).read_text(encoding="utf-8")).substitute(values)
