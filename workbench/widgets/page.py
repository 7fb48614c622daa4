"""The components that several tabs share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gradio as gr

import lrcore

from .. import words
from ..base import numbers
from . import selection, steps
from .components import (
    PRIMARY,
    after_changes,
    button_row_html,
    downloader,
    hidden_component,
    panel,
    pending_cells,
)
from .evaluation_controls import evaluation_controls
from .events import FormData, warn
from .fields import FieldGroup
from .form import START, Form, form_values, ratio_within_range

MAX_RUNS = 6  # in a comparison


def chosen_runs() -> gr.Dropdown:
    return gr.Dropdown(
        [],
        multiselect=True,
        max_choices=MAX_RUNS,
        label="Runs",
        info=words.compare_and_runs.CHOOSE_RUNS,
        elem_id="compare-runs",
        render=False,
    )


def first_address() -> FormData:
    return FormData([], gr.JSON({}, visible=False, elem_id="address"))


def automatic_buttons() -> gr.HTML:
    return panel("automatic", render=False, value=automatic_html(numbers.size_left(START.ratio)))


def automatic_html(size: str) -> str:
    """Return the buttons that start a run. size: of the compressed model, as on the button."""
    labels = {
        "compress": words.compress.COMPRESS_TO.format(size),
        "find-smallest": words.compress.FIND_SMALLEST,
    }
    return button_row_html(labels, classes={"compress": PRIMARY})


@dataclass(frozen=True)
class Page:
    """The shared components, made once by `build_app` and placed by the sidebar and the tabs.

    opened: the load event of the page. titles: of the tabs.
    """

    opened: Callable[..., Any]
    titles: tuple[str, ...]
    # Query parameters of the first address of the page, see assets/read-forms.js. gr.Request has
    # the address at the time of the request, which is later.
    address: FormData = field(default_factory=first_address)
    form: Form = field(default_factory=Form)
    evaluation: FieldGroup = field(default_factory=evaluation_controls)
    downloads: gr.HTML = field(default_factory=downloader)
    pending_cells: gr.HTML = field(default_factory=pending_cells)
    # its event comes when the plan has stopped changing; see also `gesture`
    plan_at_rest: gr.HTML = field(
        default_factory=partial(after_changes, "plan-rest", "plan", value=0)
    )
    status_bar: gr.HTML = field(default_factory=partial(panel, "status-bar"))
    # start a run and open its answers, see `tabs/compress/automatic.py`
    automatic: gr.HTML = field(default_factory=automatic_buttons)
    job_list: gr.HTML = field(
        default_factory=partial(panel, "job-list", render=False, changes=("plan",))
    )
    hint: gr.HTML = field(default_factory=partial(panel, "hint", render=False))
    model_note: gr.HTML = field(default_factory=partial(panel, "model-note", render=False))
    text_note: gr.HTML = field(default_factory=partial(panel, "text-note", render=False))
    selection_mark: gr.HTML = field(default_factory=selection.mark)
    steps: gr.HTML = field(default_factory=steps.build)
    tabs: gr.Tabs = field(default_factory=partial(gr.Tabs, elem_id="tabs", render=False))
    # Of the values on the page, see `polling.poll`. Only changes are sent: a selection in the log
    # stays.
    digests: gr.JSON = field(default_factory=partial(gr.JSON, {}, visible=False))
    # State of a browser, whose `change` event redraws the tabs.
    analysis_key: gr.State = field(default_factory=gr.State)
    factors_key: gr.State = field(default_factory=gr.State)  # of the factors behind the sliders
    # the methods whose factors are computed
    methods_ready: gr.State = field(default_factory=partial(gr.State, []))
    # number of live measurements
    figure_count: gr.State = field(default_factory=partial(gr.State, 0))
    # Key of the plan and its live measurement. A gr.State changes through Gradio's queue only, and
    # the moves of a slider do not use the queue.
    plan_key: gr.HTML = field(default_factory=partial(hidden_component, "plan-key"))
    # layer and component that every plot marks
    selected: gr.State = field(default_factory=partial(gr.State, [*selection.FIRST]))
    # changes with the runs on disk
    runs_stamp: gr.State = field(default_factory=partial(gr.State, ""))
    chosen: gr.Dropdown = field(default_factory=chosen_runs)  # the runs to compare
    # id of a job whose answers have to be opened, see `Job.opens_answers`
    finished_job: gr.State = field(default_factory=partial(gr.State, ""))
    opened_run: gr.State = field(default_factory=partial(gr.State, ""))  # its id
    run_address: gr.HTML = field(default_factory=selection.run_in_address)
    # method and policy of the options in the form, and the time when a recipe was loaded
    choice: gr.State = field(default_factory=partial(gr.State, [START.method, START.policy, 0.0]))

    @property
    def recipe_outputs(self) -> list[gr.components.Component]:
        """The components of the values that `recipe_values` returns."""
        return [*self.form.all, self.choice]

    @property
    def gesture(self) -> FormData:
        """The number of the user's last gesture, see assets/gestures.js."""
        return FormData([], self.plan_at_rest)


def recipe_values(recipe: lrcore.Recipe) -> list[Any]:
    """Return the values of `recipe_outputs` for a recipe."""
    return [*form_values(recipe), [recipe.method, recipe.policy, time.time()]]


def put_recipe(recipe: lrcore.Recipe) -> list[Any]:
    """Return the values of `recipe_outputs` that load a recipe into the form.

    A ratio beyond the slider is replaced by its nearest end, with a warning.
    """
    gr.Info(words.spectra.SETTINGS_LOADED)
    ratio, message = ratio_within_range(recipe.ratio)
    if message:
        warn(message)
    return recipe_values(recipe.with_(ratio=ratio))
