"""JavaScript and CSS files of the page."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
# Inside an installed package (see setup.py), next to the package in a clone.
FOLDER = _PACKAGE / "static"
if not FOLDER.is_dir():
    FOLDER = _PACKAGE.parent / "assets"
STYLE = FOLDER / "style.css"
# The parts of plotly.js for bars, lines and heatmaps, a quarter of its size; made by
# scripts/plotly_bundle.sh.
PLOTLY_JS = FOLDER / "plotly" / "plotly-page.min.js"


def script(*files: str, **values: Any) -> str:
    """Return the joined JavaScript of files, with $NAME replaced by values["NAME"] as JSON."""
    joined = "".join((FOLDER / name).read_text(encoding="utf-8") for name in files)
    for name, value in values.items():
        joined = joined.replace(f"${name}", json.dumps(value, allow_nan=False))
    return joined


def style() -> str:
    """Return the CSS of the page, without comments and indentation."""
    return re.sub(r"/\*.*?\*/|(?m:^\s+)", "", STYLE.read_text(encoding="utf-8"), flags=re.DOTALL)


@dataclass(frozen=True)
class SharedScript:
    """The js_on_load script of components, a function in the file with the scripts of the page.

    The description of the page, which a browser does not keep, would otherwise contain the script.
    name: "" for a name from the code. has_server: whether the components have server functions.
    """

    code: str
    name: str = ""
    has_server: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            digest = hashlib.sha256(self.code.encode()).hexdigest()[:12]
            object.__setattr__(self, "name", f"attach_{digest}")
        _shared[self.name] = self

    @property
    def _arguments(self) -> str:
        return f"element, props, trigger, watch{', server' if self.has_server else ''}"

    @property
    def definition(self) -> str:
        """A JavaScript function with this name."""
        return f"function {self.name}({self._arguments}) {{\n{self.code}\n}}\n"

    @property
    def call(self) -> str:
        """The js_on_load of a component. gr.HTML looks up the names of events in it."""
        events = " ".join(dict.fromkeys(re.findall(r"trigger\(('\w+')", self.code)))
        return f"{self.name}({self._arguments}); /* {events} */"


_shared: dict[str, SharedScript] = {}  # by name


def shared_definitions() -> str:
    """Return the definitions of all shared scripts that were made so far."""
    return "".join(shared.definition for shared in _shared.values())
