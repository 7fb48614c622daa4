"""The store: all models, calibrations, analyses, factors, plans, runs and jobs of a server.

The store is independent of the page, and can be used by scripts.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lrcore
from lrcore.checkpoints.export import check_target as lrcore_check_target
from lrcore.compression.analyze import Analysis
from lrcore.compression.calibration.calibrate import Calibration, TextPreview
from lrcore.compression.calibration.calibrate import preview_text as lrcore_preview_text
from lrcore.compression.evidence.losses import seconds_per_token
from lrcore.compression.evidence.measure import evidence_key, evidence_tokens, with_cached_probes
from lrcore.compression.solve.compress_layers import has_refit as lrcore_has_refit
from lrcore.compression.solve.factorize import Factorization, method_options
from lrcore.ranks.plan import RankPlan
from lrcore.recipes.targets import TARGETS
from lrcore.runs.runs import Run
from lrcore.system.progress import Progress

from ..base.assets import FOLDER
from .browsers import BrowserState
from .job import Job
from .job_queue import JobQueue
from .job_record import JobRecord
from .keys import (
    DEFAULTS,
    calibration_key,
    factor_key,
    model_key,
    plan_key,
    policy_row,
    probed_recipe,
    with_uniform_policy,
    with_uniform_ranks,
    without_measurements,
)
from .live import WINDOWS, LiveMeasurements, LiveRequest, figure_key, is_affordable
from .objects import ObjectCache

FIRST_ANALYSIS = FOLDER / "first-analysis.safetensors"  # written by scripts/first_analysis.py


@dataclass(frozen=True)
class MissingEvidence:
    """Measurements that a policy needs and that the store lacks.

    seconds: estimated time to measure them; 0 if they are on disk, None if unknown. is_running:
    whether a job that measures them runs or waits.
    """

    seconds: float | None
    is_running: bool


class Store:
    """The objects of a server.

    Getters compute missing objects. Methods named `peek_...` and methods for plans return None
    instead.

    folder: folder of the runs and of the job records. kinds: `workbench.jobs.KINDS`, for reading
    records after a restart. client(): the client of the current request, see `JobQueue`.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Mapping[str, type[Job]] | None = None,
        client: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self.objects = ObjectCache()
        self.live, self.browsers = LiveMeasurements(self.objects), BrowserState()
        self.runs = lrcore.Runs(folder)
        self.jobs = JobQueue(
            Path(folder) / ".jobs", kinds or {}, lambda record: record.job.run(self, record), client
        )

    # --- large objects ---

    def dense(self, recipe: lrcore.Recipe) -> lrcore.LoadedModel:
        """Return the dense model of a recipe. Raises InputError if it cannot be loaded."""
        key = model_key(recipe)
        return self.objects.get("dense", key, lambda: lrcore.load(*key))

    def calibration(self, recipe: lrcore.Recipe, progress: Progress | None = None) -> Calibration:
        """Return the moments of the model of a recipe. Raises InputError for unreadable data."""
        plain = recipe.with_(calibration_mode="independent")
        return self.objects.get(
            "calibration",
            calibration_key(recipe),
            lambda: lrcore.calibrate(self.dense(recipe), plain, progress=progress),
        )

    def analysis(self, recipe: lrcore.Recipe, progress: Progress | None = None) -> Analysis:
        """Return the spectra of the model of a recipe. Raises InputError like `calibration`."""

        def make() -> Analysis:
            moments = self.calibration(recipe, progress)
            return lrcore.analyze(self.dense(recipe), moments, progress=progress)

        return self.objects.get("analysis", calibration_key(recipe), make)

    def add_first_analysis(self) -> list[Any]:
        """Add the analysis of the default settings, which ships with the page, and return its key.

        An analysis in the cache is not replaced.
        """
        key = calibration_key(DEFAULTS)
        if self.analysis_by_key(key) is None:
            self.objects.put("analysis", key, Analysis.read(FIRST_ANALYSIS))
        return list(key)

    def factors(self, recipe: lrcore.Recipe, progress: Progress | None = None) -> Factorization:
        """Return the factors of the method of a recipe, with the evidence for its policy.

        Raises InputError like `calibration`, and for an unknown method, policy or option.
        """

        def make() -> Factorization:
            dense = self.dense(recipe)
            if evidence_key(recipe):
                plain = self.factors(without_measurements(recipe), progress)
                return lrcore.measure_evidence(dense, plain, recipe, progress=progress)
            moments = self.calibration(recipe, progress)
            options = method_options(recipe)
            plain = lrcore.factorize(dense, moments, recipe.method, progress, options)
            probed = with_cached_probes(dense, plain, recipe)
            if probed is not plain:
                self.objects.put("factors", factor_key(probed_recipe(recipe)), probed)
            return plain

        return self.objects.get("factors", factor_key(recipe), make)

    def run_model(self, run: Run) -> lrcore.LoadedModel:
        """Return the model of a run. Raises InputError if the checkpoint cannot be loaded."""
        recipe = run.recipe
        return self.objects.get(
            "small",
            run.id,
            lambda: lrcore.load(str(run.checkpoint), dtype=recipe.dtype, device=recipe.device),
        )

    def preview_text(self, recipe: lrcore.Recipe) -> TextPreview:
        """Return the beginning of the calibration text; empty until it is available.

        Raises InputError if the text cannot be read.
        """
        dense = self.peek_dense(recipe)
        tokenizer = None if dense is None else dense.tokenizer
        key = (*model_key(recipe), recipe.data, recipe.seq_len, dense is not None)
        return self.objects.get("text head", key, lambda: lrcore_preview_text(recipe, tokenizer))

    def peek_dense(self, recipe: lrcore.Recipe) -> lrcore.LoadedModel | None:
        return self.objects.peek("dense", model_key(recipe))

    def peek_calibration(self, recipe: lrcore.Recipe) -> Calibration | None:
        return self.objects.peek("calibration", calibration_key(recipe))

    def peek_analysis(self, recipe: lrcore.Recipe) -> Analysis | None:
        return self.objects.peek("analysis", calibration_key(recipe))

    def peek_factors(self, recipe: lrcore.Recipe) -> Factorization | None:
        return self.objects.peek("factors", factor_key(self.factors_recipe(recipe)))

    def factors_recipe(self, recipe: lrcore.Recipe) -> lrcore.Recipe:
        """Return the recipe whose cached factors are used for a recipe.

        If its policy needs no measurements, factors with probes are used if they are cached,
        because probes allow a prediction of the perplexity.
        """
        if evidence_key(recipe):
            return recipe
        probed = probed_recipe(recipe)
        return recipe if self.objects.peek("factors", factor_key(probed)) is None else probed

    def analysis_by_key(self, key: Sequence[Any] | None) -> Analysis | None:
        """Return the cached analysis with this key, or None."""
        return self.objects.peek("analysis", tuple(key)) if key else None

    def has_refit(self, recipe: lrcore.Recipe) -> bool:
        """Return True if compression by a recipe includes a refit. Raises InputError if `refit` is
        "on" and the model does not support it.

        The result is cached longer than the model, so that a redraw does not load the model.
        """
        key = (model_key(recipe), recipe.method, recipe.refit)
        return self.objects.get(
            "refits", key, lambda: lrcore_has_refit(recipe, self.dense(recipe).network)
        )

    def pace(self, recipe: lrcore.Recipe) -> float:
        """Return the seconds per token of the dense model."""

        def make() -> float:
            return seconds_per_token(self.dense(recipe), self.calibration(recipe))

        return self.objects.get("pace", model_key(recipe), make)

    def peek_pace(self, recipe: lrcore.Recipe) -> float | None:
        return self.objects.peek("pace", model_key(recipe))

    # --- plans; None while their factors are not in the object cache ---

    def plan(self, recipe: lrcore.Recipe | None) -> RankPlan | None:
        """Return the rank plan of a recipe, as compression uses it unless `is_draft` is True.

        Raises InputError for a budget that cannot be met.
        """
        return None if recipe is None else self.plan_from(recipe, recipe)

    def uniform_plan(self, recipe: lrcore.Recipe) -> RankPlan | None:
        """Return uniform ranks at the budget of a recipe. Raises InputError like `plan`."""
        return self.plan_from(recipe, with_uniform_ranks(recipe))

    def policy_plan(self, recipe: lrcore.Recipe) -> RankPlan | None:
        """Return the plan without manual ranks. Raises InputError like `plan`."""
        return self.plan_from(recipe, recipe.with_(rank_overrides={}))

    def plan_from(self, base: lrcore.Recipe, recipe: lrcore.Recipe) -> RankPlan | None:
        """Return the plan of a recipe from the factors of another recipe of the same method.

        Raises InputError like `plan`, and if the policy lacks evidence.
        """
        factors = self.peek_factors(base)
        if factors is None:
            return None

        def make() -> RankPlan | lrcore.InputError:
            try:
                self.check_target(recipe)
                return lrcore.allocate(factors, recipe)
            except lrcore.InputError as error:
                return error  # cached like a plan, because a slider requests it repeatedly

        plan = self.objects.get("plan", plan_key(self.factors_recipe(base), recipe), make)
        if isinstance(plan, lrcore.InputError):
            raise lrcore.InputError(str(plan))
        return plan

    def check_target(self, recipe: lrcore.Recipe) -> None:
        """Raise InputError if the target cannot run the model at any ranks of the method.

        The result is cached longer than the model.
        """
        if TARGETS[recipe.target].takes_code:
            return

        def make() -> str:
            try:
                lrcore_check_target(self.dense(recipe), recipe)
            except lrcore.InputError as error:
                return str(error)
            return ""

        key = (model_key(recipe), recipe.method, recipe.target)
        if reason := self.objects.get("fits", key, make):
            raise lrcore.InputError(reason)

    def is_draft(self, recipe: lrcore.Recipe) -> bool:
        """Return True if compression will compare the plan with uniform ranks.

        If these are better, compression uses them. Raises InputError like `plan`.
        """
        plan = self.plan(recipe)
        if plan is None or plan.against_uniform is not None or not policy_row(recipe)["checked"]:
            return False
        uniform_plan = self.plan_from(recipe, with_uniform_policy(recipe))
        return uniform_plan is not None and plan.key != uniform_plan.key

    def missing_evidence(self, recipe: lrcore.Recipe) -> MissingEvidence | None:
        """Return the measurements without which the policy of a recipe cannot choose ranks.

        Returns None if nothing is missing, or if the factors of the method are missing as well.
        """
        if not evidence_key(recipe) or self.peek_factors(recipe) is not None:
            return None
        factors = self.peek_factors(without_measurements(recipe))
        if factors is None:
            return None
        is_running = any(record.job.prepares(recipe) for record in self.jobs.waiting())
        tokens, pace = evidence_tokens(factors, recipe), self.peek_pace(recipe)
        return MissingEvidence(pace and pace * tokens if tokens else 0.0, is_running)

    # --- live figures ---

    def live_key(self, recipe: lrcore.Recipe) -> str:
        """Return the key of the live figure of a plan; "" while its factors are not cached.

        Raises InputError like `plan`.
        """
        factors, plan = self.peek_factors(recipe), self.plan(recipe)
        return "" if factors is None or plan is None else figure_key(factors, recipe, plan)

    def live_request(
        self, recipe: lrcore.Recipe, browser: Hashable, windows: int = WINDOWS
    ) -> LiveRequest | None:
        """Return the request for the live figure of a plan.

        Returns None while the factors are not cached, and for `WINDOWS` windows if the model is too
        large for automatic measurements. Raises InputError like `plan`.
        """
        return self._request(recipe, recipe, browser, windows)

    def live_request_uniform(
        self, recipe: lrcore.Recipe, browser: Hashable, windows: int = WINDOWS
    ) -> LiveRequest | None:
        """Return the request for uniform ranks at the budget of a recipe, like `live_request`."""
        return self._request(recipe, with_uniform_ranks(recipe), browser, windows)

    def _request(
        self, base: lrcore.Recipe, recipe: lrcore.Recipe, browser: Hashable, windows: int
    ) -> LiveRequest | None:
        factors, plan = self.peek_factors(base), self.plan_from(base, recipe)
        if factors is None or plan is None:
            return None
        try:
            has_refit = self.has_refit(recipe)
        except lrcore.InputError:
            has_refit = False  # compression raises the same error, which becomes the live figure
        if windows == WINDOWS and not is_affordable(factors, recipe, has_refit):
            return None
        checks = self.is_draft(recipe) and is_affordable(factors, recipe, has_refit, checks=True)
        key = figure_key(factors, recipe, plan)
        prompt = self.browsers.prompt(browser)
        return LiveRequest(key, browser, factors, recipe, plan, checks, windows, prompt)

    # --- comparison of methods ---

    def recipes_by_method(self, recipe: lrcore.Recipe) -> list[lrcore.Recipe]:
        """Return the recipe with each method.

        Methods other than its method have default options and no manual ranks.
        """
        names = [row["name"] for row in lrcore.list_methods()]
        return [
            recipe
            if name == recipe.method
            else recipe.with_(method=name, options={}, component_ratios={}, rank_overrides={})
            for name in names
        ]

    def methods_factorized(self, recipe: lrcore.Recipe) -> list[str]:
        """Return "method evidence..." for each method and kind of evidence with cached factors.

        The page redraws its comparison of methods if the list changes. Evidence that is measured
        for a single budget is left out.
        """
        policy_recipes = [
            recipe.with_(policy=row["name"])
            for row in lrcore.list_policies()
            if not row["one_budget"]
        ]
        policies = {evidence_key(candidate): candidate.policy for candidate in policy_recipes}
        return [
            " ".join((method_recipe.method, *evidence))
            for method_recipe in self.recipes_by_method(recipe)
            for evidence, policy in policies.items()
            if self.peek_factors(method_recipe.with_(policy=policy)) is not None
        ]

    # --- runs ---

    def runs_by_id(self, ids: Sequence[str] | None) -> list[Run]:
        """Return the runs with these ids. Deleted runs are omitted."""
        if not ids:  # avoids disk access
            return []
        existing = set(self.runs.ids())
        return [self.runs.get(run_id) for run_id in ids if run_id in existing]

    def save_run(self, name: str, recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> Run:
        """Save a model as a run, on disk and in the object cache."""
        run = self.runs.write(name, recipe, model)
        self.objects.put("small", run.id, model)
        return run

    def waiting_jobs(self, recipe: lrcore.Recipe | None) -> list[JobRecord]:
        """Return the running and queued jobs for the model of a recipe; [] without a recipe."""
        if not recipe:
            return []
        jobs = ((record, getattr(record.job, "recipe", None)) for record in self.jobs.waiting())
        return [
            record for record, job_recipe in jobs if job_recipe and job_recipe.model == recipe.model
        ]

    def delete(self, run_id: str) -> None:
        """Delete a run permanently. Raises InputError for an unknown id."""
        self.runs.delete(run_id)
        self.objects.drop("small", run_id)

    def discard(self, run_id: str) -> None:
        """Delete a run; `runs.restore` undoes it. Raises InputError for an unknown id."""
        self.runs.discard(run_id)
        self.objects.drop("small", run_id)
