"""JavaScript and CSS files of the page."""

import json
from dataclasses import dataclass
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


@dataclass(frozen=True)
class SharedScript:
    """The js_on_load script of several components, defined once in the head of the page.

    Otherwise the page's configuration would repeat the script for each component.
    """

    name: str
    code: str

    @property
    def definition(self) -> str:
        """A JavaScript function with this name."""
        return f"function {self.name}(element, props, trigger, watch) {{\n{self.code}\n}}\n"

    @property
    def call(self) -> str:
        """The js_on_load of a component."""
        return f"{self.name}(element, props, trigger, watch);"
