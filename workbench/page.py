"""The components that several tabs share. Nothing is computed here."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gradio as gr

import lrcore

from . import hand, run_text, selection, steps, text
from .components import at_rest, downloader, panel, pending_cells, unseen
from .evaluation_controls import EvaluationControls
from .events import QUIET
from .form import START, Form, form_values

MOST_RUNS = 6  # that are compared at once
# what assets/address.js keeps, as an object
OPENED_WITH = "() => Object.fromEntries(new URLSearchParams(window.openedWith))"


def chosen_runs() -> gr.Dropdown:
    return gr.Dropdown(
        [],
        multiselect=True,
        max_choices=MOST_RUNS,
        label="Runs",
        info=run_text.CHOOSE_RUNS,
        elem_id="compare-runs",
        render=False,
    )


@dataclass(frozen=True)
class Page:
    """Made once by build_app(), inside the Blocks; each component is placed by who shows it.

    opened: the event of a page being loaded; titles: of the tabs.
    """

    opened: Callable[..., Any]
    titles: tuple[str, ...]
    # query parameters of the address that the page was opened with, from `address_first` on
    address: gr.JSON = field(default_factory=partial(gr.JSON, {}, visible=False))
    form: Form = field(default_factory=Form)
    evaluation: EvaluationControls = field(default_factory=EvaluationControls)
    downloads: gr.HTML = field(default_factory=downloader)
    pending_cells: gr.HTML = field(default_factory=pending_cells)
    # its event follows a change of the plan, once no other comes
    rest: gr.HTML = field(default_factory=partial(at_rest, "plan-rest", "plan"))
    status_bar: gr.HTML = field(default_factory=partial(panel, "status-bar"))
    job_list: gr.HTML = field(default_factory=partial(panel, "job-list", render=False))
    hint: gr.HTML = field(default_factory=partial(panel, "hint", render=False))
    model_note: gr.HTML = field(default_factory=partial(panel, "model-note", render=False))
    text_note: gr.HTML = field(default_factory=partial(panel, "text-note", render=False))
    selection_mark: gr.HTML = field(default_factory=selection.mark)
    steps: gr.HTML = field(default_factory=steps.build)
    tabs: gr.Tabs = field(default_factory=partial(gr.Tabs, elem_id="tabs", render=False))
    # What this browser was last sent: only what changed is sent again, so a selection in the log
    # stays.
    sent: gr.State = field(default_factory=partial(gr.State, ()))
    # What a browser holds; their `change` redraws the tabs.
    analysis_key: gr.State = field(default_factory=gr.State)  # of the analysis on show
    factors_key: gr.State = field(default_factory=gr.State)  # of the factors behind the sliders
    # the methods whose factors are computed
    methods_ready: gr.State = field(default_factory=partial(gr.State, []))
    # how many live figures are known
    figure_count: gr.State = field(default_factory=partial(gr.State, 0))
    # Of the ranks on show and of what their live figure depends on. No gr.State: of those the page
    # learns through Gradio's queue alone that they changed, which a slider's moves go past.
    plan_key: gr.HTML = field(default_factory=partial(unseen, "plan-key"))
    # layer and component, marked in every plot
    selected: gr.State = field(default_factory=partial(gr.State, [*selection.FIRST]))
    # of the ranks set by hand
    rank_history: gr.State = field(default_factory=partial(gr.State, hand.EMPTY))
    # of the runs on disk
    runs_stamp: gr.State = field(default_factory=partial(gr.State, ""))
    chosen: gr.Dropdown = field(default_factory=chosen_runs)  # the runs to compare
    opened_run: gr.State = field(default_factory=partial(gr.State, ""))  # its id
    run_address: gr.HTML = field(default_factory=selection.run_in_address)
    # method and policy whose options the form holds, and when a recipe was put into it
    choice: gr.State = field(default_factory=partial(gr.State, [START.method, START.policy, 0.0]))

    def address_first(self, *events: Any) -> gr.events.Dependency:
        """The event that follows these once `address` has its value, for handlers that are given
        that: gr.Request has the address as it is when the browser asks, which is later.
        """
        return gr.on(list(events), None, None, self.address, js=OPENED_WITH, **QUIET)

    @property
    def recipe_outputs(self) -> list[gr.components.Component]:
        """What `put_recipe` gives the values of."""
        return [*self.form.all, self.rank_history, self.choice]


def put_recipe(recipe: lrcore.Recipe) -> list[Any]:
    """What to put into the page so that the form holds this recipe and the tabs follow."""
    gr.Info(text.RECIPE_LOADED)
    choice = [recipe.method, recipe.policy, time.time()]
    return [*form_values(recipe), hand.EMPTY, choice]
