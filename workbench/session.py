"""What the tabs share: the store, and the components that several of them touch.

One Session per server; a browser's own state is only its form and light ids.
"""

import time
from typing import Any

import gradio as gr

import lrcore

from . import hand, text
from .form import START, Form
from .job import Job
from .job_queue import Jobs
from .job_record import JobRecord
from .jobs import KINDS, start_analysis, start_survey
from .measure import Measure
from .objects import ObjectCache
from .parts import downloader, late_cells, panel
from .store import Store

FIRST_SLOT = (
    0,
    next(row["components"][0] for row in lrcore.methods() if row["name"] == lrcore.Recipe().method),
)


class Session(Store):
    """Made once by build_app(). `form` and `signals` are components, the rest is server-side."""

    def __init__(self) -> None:
        super().__init__(lrcore.runs_root(), KINDS)
        self.jobs.__class__ = SpecJobs

    def make_components(self) -> None:
        """The components that several tabs touch. Called once, inside the Blocks."""
        self.form, self.measure = Form(), Measure()
        self.downloads = downloader()
        self.measured = late_cells()
        self.strip = panel("strip")
        self.job_panel = panel("job-list", render=False)
        self.hint = panel("hint", render=False)
        # Light marks that a browser holds; their `change` is what redraws the tabs.
        self.shown = gr.State(None)  # key of the analysis on show
        self.factored = gr.State(None)  # key of the factors behind the sliders
        self.surveyed = gr.State([])  # the methods whose factors are here
        self.figures = gr.State(0)  # how many live figures are known
        self.planned = gr.State(
            ""
        )  # key of the ranks on show and of what their live figure depends on
        self.selected = gr.State([*FIRST_SLOT])  # layer and component, marked in every plot
        self.history = gr.State(hand.EMPTY)  # of the ranks set by hand
        self.stamp = gr.State("")  # of the runs on disk
        self.chosen = gr.State(
            [START.method, START.policy, 0.0]
        )  # whose options the form holds, and when a recipe was put into it

    @property
    def filled(self) -> list[gr.components.Component]:
        return [*self.form.all, self.history, self.chosen]

    def fill(self, recipe: lrcore.Recipe) -> list[Any]:
        """What to put into `filled` so that the form says this recipe and the tabs follow."""
        gr.Info(text.RECIPE_LOADED)
        return [*self.form.values(recipe), hand.EMPTY, [recipe.method, recipe.policy, time.time()]]

    # --- names of before ---

    @property
    def shelf(self) -> ObjectCache:
        return self.objects

    def methods_here(self, recipe: lrcore.Recipe) -> list[str]:
        return self.methods_factorised(recipe)

    def start_analysis(self, recipe: lrcore.Recipe) -> JobRecord | None:
        return start_analysis(self, recipe)

    def start_survey(self, recipe: lrcore.Recipe) -> JobRecord:
        return start_survey(self, recipe)


class SpecJobs(Jobs):
    """The queue, which also takes a kind and a dictionary of what earlier specifications held."""

    def submit(
        self,
        job: Job | str,
        title: str = "",
        spec: dict[str, Any] | None = None,
        once: bool = False,
    ) -> JobRecord:
        return super().submit(KINDS[job].from_dict(spec) if isinstance(job, str) else job, title)
