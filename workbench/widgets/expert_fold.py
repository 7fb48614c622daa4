"""The fold of expert settings, at most one per tab.

While it is closed, the page also hides all elements of the tab with the class EXPERT
(`assets/style.css`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gradio as gr

from lrcore.system.as_json import json_text

from .. import words
from ..views.markup import EXPERT as EXPERT


@contextmanager
def expert_fold(
    tab: str, opener: gr.HTML, parameters: Sequence[str] = (), plan: str = ""
) -> Iterator[gr.Accordion]:
    """Place the fold of a tab around the components of the block.

    The fold opens by itself if a message names the label of a component in it, if the address of
    the page has one of the query parameters, and if no plan fits the settings. tab: a name for the
    element id. opener: a component of the tab whose script opens the fold. plan: the element that
    shows the error of a plan.
    """
    elem_id = f"expert-{tab}"
    with gr.Accordion(
        words.spectra.EXPERT, open=False, elem_id=elem_id, elem_classes="expert-fold"
    ) as fold:
        yield fold
    values = ", ".join(map(json_text, (elem_id, labels(fold), [*parameters], plan)))
    opener.js_on_load = f"{opener.js_on_load or ''}\nopenFoldByItself({values});"


def labels(block: gr.blocks.Block) -> list[str]:
    """Return the labels of all components in a block, except those of options.

    The label of an option is a common word in lower case.
    """
    inner = [label for child in getattr(block, "children", []) for label in labels(child)]
    inner += [field.label for field in getattr(block, "fields", ())]
    label = getattr(block, "label", None)
    if isinstance(label, str) and label[:1].isupper() and not isinstance(block, gr.Accordion):
        return [label, *inner]
    return inner
