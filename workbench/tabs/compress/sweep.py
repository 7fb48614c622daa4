"""A sweep: methods × policies × ratios × calibration texts as one job."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import text
from ...components import Textbox
from ...events import QUIET, bind, listen
from ...jobs import SweepJob
from ...page import Page
from ...store import Store
from .reading import inputs, read_and_check


@dataclass(frozen=True)
class SweepControls:
    methods: gr.Dropdown
    policies: gr.Dropdown
    ratios: gr.Textbox
    texts: gr.Textbox
    cross: gr.Checkbox
    start: gr.Button


def layout() -> SweepControls:
    with gr.Accordion(text.SWEEP, open=False):
        with gr.Row(elem_classes="bottom"):
            methods = gr.Dropdown(
                [row["name"] for row in lrcore.methods()],
                multiselect=True,
                label="Methods",
                elem_id="sweep-methods",
            )
            policies = gr.Dropdown(
                [row["name"] for row in lrcore.policies()],
                multiselect=True,
                label="Policies",
                info=text.SWEEP_EMPTY,
                elem_id="sweep-policies",
            )
        with gr.Row(elem_classes="bottom"):
            ratios = Textbox(
                "0.1, 0.2, 0.3, 0.4",
                label="Remove",
                info="shares, separated by commas",
                elem_id="sweep-ratios",
            )
            texts = Textbox(label="Calibration texts", info=text.SWEEP_EMPTY, elem_id="sweep-sets")
            cross = gr.Checkbox(
                False,
                label="Measure on every calibration text",
                info=text.CROSS,
                elem_id="sweep-cross",
            )
            start = gr.Button("Start the sweep", elem_id="start-sweep", scale=0, min_width=160)
    return SweepControls(methods, policies, ratios, texts, cross, start)


def wire(page: Page, store: Store, parts: SweepControls) -> None:
    choices = [parts.methods, parts.policies, parts.ratios, parts.texts, parts.cross]
    listen([parts.start.click], bind(start, store), [*choices, *inputs(page)], None, **QUIET)


def start(store: Store, methods: list[str], policies: list[str], *values: Any) -> None:
    """Queue a sweep; values: the ratios and texts as typed, whether to measure on every text, then
    recipe and evaluation.
    """
    ratios, texts, cross, *rest = values
    recipe, settings = read_and_check(store, rest)
    shares = read_shares(ratios, recipe)
    if not methods:
        raise lrcore.InputError("The sweep has no methods: choose at least one.")
    job = SweepJob(
        recipe,
        methods=tuple(methods),
        ratios=tuple(shares),
        policies=tuple(policies or ()),
        calibration_sets=tuple(name.strip() for name in texts.split(",") if name.strip()),
        evaluation=settings,
        cross=cross,
    )
    job.check()
    store.jobs.submit(job)


def read_shares(typed: str, recipe: lrcore.Recipe) -> list[float]:
    """The shares of a sweep. Raises InputError now for what would fail later."""
    try:
        shares = [float(share) for share in typed.replace(";", ",").split(",") if share.strip()]
    except ValueError:
        raise lrcore.InputError(
            f"'{typed}' is no list of shares. Write numbers between 0 and 1 with commas, such as "
            "0.1, 0.2."
        ) from None
    if not shares:
        raise lrcore.InputError(
            "The sweep has no shares to remove. Write numbers between 0 and 1 with commas, such "
            "as 0.1, 0.2."
        )
    return [recipe.with_(ratio=share).ratio for share in shares]
