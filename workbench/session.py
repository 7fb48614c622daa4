"""What the tabs share: jobs, runs, heavy objects.

One Session per server; a browser's own state is only its form and light ids.
"""

import time
from typing import Any

import gradio as gr

import lrcore

from . import hand, text, work
from .form import START, Form
from .jobs import Job, Jobs
from .keys import calibration_key, factor_key, model_key
from .live import Live
from .measure import Measure
from .parts import downloader, late_cells, panel
from .runs import Run, Runs, root
from .shelf import Shelf

FIRST_SLOT = (
    0,
    next(row["components"][0] for row in lrcore.methods() if row["name"] == lrcore.Recipe().method),
)


class Session:
    """Made once by build_app(). `form` and `signals` are components, the rest is server-side."""

    def __init__(self) -> None:
        folder = root()
        self.shelf = Shelf()
        self.live = Live(self.shelf)
        self.runs = Runs(folder)
        self.jobs = Jobs(
            folder / ".jobs",
            {kind: lambda job, do=do: do(self, job) for kind, do in work.WORK.items()},
        )

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

    # --- heavy objects; the getters compute what is missing, the peeks never do ---

    def dense(self, recipe: lrcore.Recipe) -> Any:
        return self.shelf.get("dense", model_key(recipe), lambda: lrcore.load(*model_key(recipe)))

    def calibration(self, recipe: lrcore.Recipe, progress=None) -> Any:
        plain = recipe.with_(calibration="independent")
        return self.shelf.get(
            "calibration",
            calibration_key(recipe),
            lambda: lrcore.calibrate(self.dense(recipe), plain, progress=progress),
        )

    def analysis(self, recipe: lrcore.Recipe, progress=None) -> Any:
        def make() -> Any:
            return lrcore.analyse(
                self.dense(recipe), self.calibration(recipe, progress), progress=progress
            )

        return self.shelf.get("analysis", calibration_key(recipe), make)

    def factors(self, recipe: lrcore.Recipe, progress=None) -> Any:
        """The decompositions of a recipe's method, with what its policy measures on the model."""

        def make() -> Any:
            if not lrcore.evidence_key(recipe):
                return lrcore.factorise(
                    self.dense(recipe),
                    self.calibration(recipe, progress),
                    recipe.method,
                    progress,
                    recipe.options,
                )
            plain = self.factors(recipe.with_(policy=lrcore.Recipe().policy), progress)
            return lrcore.measure_evidence(self.dense(recipe), plain, recipe, progress=progress)

        return self.shelf.get("factors", factor_key(recipe), make)

    def small(self, run: Run) -> Any:
        return self.shelf.get(
            "small",
            run.id,
            lambda: lrcore.load(
                str(run.checkpoint), dtype=run.recipe.dtype, device=run.recipe.device
            ),
        )

    def analysis_shown(self, key: list | None) -> Any | None:
        """The analysis with this key, while it is on the shelf."""
        return self.shelf.peek("analysis", tuple(key)) if key else None

    def plan(self, recipe: lrcore.Recipe | None) -> Any | None:
        """The rank plan of a recipe, while its factors are on the shelf.

        Raises InputError for a budget that cannot be met.
        """
        factors = self.peek_factors(recipe) if recipe else None
        return None if factors is None else lrcore.allocate(factors, recipe)

    def peek_analysis(self, recipe: lrcore.Recipe) -> Any | None:
        return self.shelf.peek("analysis", calibration_key(recipe))

    def peek_dense(self, recipe: lrcore.Recipe) -> Any | None:
        return self.shelf.peek("dense", model_key(recipe))

    def peek_factors(self, recipe: lrcore.Recipe) -> Any | None:
        return self.shelf.peek("factors", factor_key(recipe))

    def by_method(self, recipe: lrcore.Recipe) -> list[lrcore.Recipe]:
        """The recipe for every method; the others have their default options and no ranks set by
        hand.
        """
        others = [
            recipe.with_(method=row["name"], options={}, component_ratios={}, overrides={})
            for row in lrcore.methods()
        ]
        return [recipe if other.method == recipe.method else other for other in others]

    def methods_here(self, recipe: lrcore.Recipe) -> list[str]:
        """The methods whose factors are on the shelf, with a mark of what was measured that
        serves every budget.
        """
        serving = [
            recipe.with_(policy=row["name"]) for row in lrcore.policies() if not row["one_budget"]
        ]
        policies = {lrcore.evidence_key(asked): asked.policy for asked in serving}
        found = []
        for other in self.by_method(recipe):
            for mark, policy in policies.items():
                if self.peek_factors(other.with_(policy=policy)) is not None:
                    found.append(" ".join((other.method, *mark)))
        return found

    # --- jobs ---

    def start_analysis(self, recipe: lrcore.Recipe) -> Job | None:
        """Queue what the Spectra and Allocation tabs need and lack; None when all of it is here."""
        if self.peek_analysis(recipe) is not None and self.peek_factors(recipe) is not None:
            return None
        spec = {"recipe": Form.analysed(recipe).to_dict()}
        return self.jobs.submit("analyse", f"Analyse {recipe.model}", spec, kept=False, once=True)

    def start_survey(self, recipe: lrcore.Recipe) -> Job:
        """Queue the factors of every method for these settings."""
        spec = {"recipe": recipe.with_(overrides={}).to_dict()}
        return self.jobs.submit(
            "survey", f"Every method on {recipe.model}", spec, kept=False, once=True
        )
