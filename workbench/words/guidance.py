"""Words of the first visit, the tour, the command palette and the list of shortcuts."""

from typing import Any

from lrcore.models.load import built_in_models

from . import compress, spectra

# Element id of a button, the tab that it is on ("" for the sidebar), and its label in the palette
_ACTIONS = (
    ("analyse", "", spectra.ANALYZE),
    ("compress", "Allocation", compress.COMPRESS_TO.format("the size of the slider")),
    ("find-smallest", "Allocation", compress.FIND_SMALLEST),
    ("pin", "Allocation", "Pin the plan"),
    ("undo", "Allocation", "Undo the last change of the plan"),
    ("redo", "Allocation", "Redo the change of the plan"),
    ("start", "Compress", "Start a run with this plan"),
)
_SHORTCUTS = (
    ("Ctrl K", "Open the command palette: tabs, models and actions"),
    ("?", "Show this list"),
    ("Ctrl Z", "Allocation: undo the last change of the plan"),
    ("Ctrl Shift Z", "Allocation: redo the change"),
    ("Arrow keys", "Heatmap: move to a cell. Selected bar: change its rank"),
    ("Enter", "Heatmap: select the cell"),
    ("Ctrl click", "Heatmap: compare a cell with the selected layer"),
    ("Delete", "Selected bar: reset its rank to the policy"),
    ("Escape", "Close a window, a list or an explanation"),
)
# Selector of an element, the tab that it is on ("" for the sidebar), and a sentence
_TOUR = (
    ("#field-model", "", "Choose a model and a calibration text, and press Analyze."),
    ("#heatmap", "Spectra", "See which layers and components have a low rank. Click a cell."),
    (
        "#controls",
        "Allocation",
        "Set the size. The ranks and the measured perplexity follow. Press Compress.",
    ),
    ("#prompt", "Compare", "Read the answers of the dense and the compressed model side by side."),
)
_MODEL = "smollm2-135m"  # of an example, if its package is installed


def examples() -> list[tuple[str, str, str]]:
    """Return title, sentence and address of the three examples of a first visit."""
    model = _MODEL if _MODEL in built_in_models() else "demo-opt"
    return [
        (
            "Compress a model to 80 %",
            "The demo model, ready to compress and compare.",
            "?tab=Allocation&ratio=0.2",
        ),
        (
            "Halve the KV cache",
            "Method care caches low-rank latents.",
            "?tab=Allocation&method=care&policy=waterfill&ratio=0.5",
        ),
        (f"Look into {model}", "Its singular values, layer by layer.", f"?model={model}"),
    ]


def page_values() -> dict[str, Any]:
    """Return the texts for `assets/guidance.js`."""
    return {
        "examples": examples(),
        "models": list(built_in_models()),
        "actions": _ACTIONS,
        "shortcuts": _SHORTCUTS,
        "tour": _TOUR,
        "welcome": "Welcome. Begin with an example, or take the tour of four steps.",
        "takeTour": "Take the tour",
        "close": "Close",
        "next": "Next",
        "done": "Done",
        "skip": "Skip the tour",
        "step": "Step {} of {}",
        "palette": "Command palette",
        "search": "Type a tab, a model or an action",
        "nothing": "No command matches.",
        "openTab": "Open {}",
        "useModel": "Use model {}",
        "help": "Keyboard shortcuts",
        "shortcutsButton": "Shortcuts",
    }
