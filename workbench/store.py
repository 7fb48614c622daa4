"""The store: every model, calibration, analysis, factorisation, plan, run and job of a server.

It knows no page: what a browser shows is read from here, and a script may use it alone.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lrcore

from .job import Job
from .job_queue import Jobs
from .job_record import JobRecord
from .keys import (
    by_probes,
    calibration_key,
    even,
    factor_key,
    model_key,
    plan_key,
    policy_row,
    uniform,
    unmeasured,
)
from .live import WINDOWS, Live, LiveRequest, affordable, figure_key
from .objects import ObjectCache
from .shown import Shown


class Store:
    """One per server. The getters compute what is missing; `peek_...` and the plans never do.

    folder: where the runs and the records of jobs are. kinds: the kinds of jobs whose records are
    read again after a restart, `workbench.jobs.KINDS`. client(): who is asking, see `Jobs`.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Mapping[str, type[Job]] | None = None,
        client: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self.objects = ObjectCache()
        self.live, self.shown = Live(self.objects), Shown()
        self.runs = lrcore.Runs(folder)
        self.jobs = Jobs(
            Path(folder) / ".jobs", kinds or {}, lambda record: record.job.run(self, record), client
        )

    # --- heavy objects ---

    def dense(self, recipe: lrcore.Recipe) -> lrcore.LoadedModel:
        """The model of a recipe, uncompressed. Raises InputError where it cannot be loaded."""
        key = model_key(recipe)
        return self.objects.get("dense", key, lambda: lrcore.load(*key))

    def calibration(
        self, recipe: lrcore.Recipe, progress: lrcore.Progress | None = None
    ) -> lrcore.Calibration:
        """The moments of a recipe's model on its data. Raises InputError for unreadable data."""
        plain = recipe.with_(calibration="independent")
        return self.objects.get(
            "calibration",
            calibration_key(recipe),
            lambda: lrcore.calibrate(self.dense(recipe), plain, progress=progress),
        )

    def analysis(
        self, recipe: lrcore.Recipe, progress: lrcore.Progress | None = None
    ) -> lrcore.Analysis:
        """The spectra of a recipe's model. Raises InputError as `calibration` does."""

        def make() -> lrcore.Analysis:
            moments = self.calibration(recipe, progress)
            return lrcore.analyse(self.dense(recipe), moments, progress=progress)

        return self.objects.get("analysis", calibration_key(recipe), make)

    def factors(
        self, recipe: lrcore.Recipe, progress: lrcore.Progress | None = None
    ) -> lrcore.Factorisation:
        """The decompositions of a recipe's method, with the evidence that its policy needs.

        Raises InputError as `calibration` does, and for an unknown method, policy or option.
        """

        def make() -> lrcore.Factorisation:
            dense = self.dense(recipe)
            if lrcore.evidence_key(recipe):
                plain = self.factors(unmeasured(recipe), progress)
                return lrcore.measure_evidence(dense, plain, recipe, progress=progress)
            moments = self.calibration(recipe, progress)
            options = lrcore.method_options(recipe)
            plain = lrcore.factorise(dense, moments, recipe.method, progress, options)
            probed = lrcore.with_kept_probes(dense, plain, recipe)
            if probed is not plain:
                self.objects.put("factors", factor_key(by_probes(recipe)), probed)
            return plain

        return self.objects.get("factors", factor_key(recipe), make)

    def small(self, run: lrcore.Run) -> lrcore.LoadedModel:
        """The model of a run. Raises InputError where its checkpoint cannot be loaded."""
        recipe = run.recipe
        return self.objects.get(
            "small",
            run.id,
            lambda: lrcore.load(str(run.checkpoint), dtype=recipe.dtype, device=recipe.device),
        )

    def text_head(self, recipe: lrcore.Recipe) -> str:
        """How a recipe's calibration text begins, see `lrcore.text_head`, which raises InputError;
        "" where that is not known yet.
        """
        dense = self.peek_dense(recipe)
        tokenizer = None if dense is None else dense.tokenizer
        key = (*model_key(recipe), recipe.data, recipe.seq_len, dense is not None)
        return self.objects.get("text head", key, lambda: lrcore.text_head(recipe, tokenizer))

    def peek_dense(self, recipe: lrcore.Recipe) -> lrcore.LoadedModel | None:
        return self.objects.peek("dense", model_key(recipe))

    def peek_calibration(self, recipe: lrcore.Recipe) -> lrcore.Calibration | None:
        return self.objects.peek("calibration", calibration_key(recipe))

    def peek_analysis(self, recipe: lrcore.Recipe) -> lrcore.Analysis | None:
        return self.objects.peek("analysis", calibration_key(recipe))

    def peek_factors(self, recipe: lrcore.Recipe) -> lrcore.Factorisation | None:
        return self.objects.peek("factors", factor_key(self.factored_by(recipe)))

    def factored_by(self, recipe: lrcore.Recipe) -> lrcore.Recipe:
        """The recipe whose factors stand for those of a recipe: where its policy measures nothing,
        those with probes if they are here, so that its plans are predicted.
        """
        if lrcore.evidence_key(recipe):
            return recipe
        probed = by_probes(recipe)
        return recipe if self.objects.peek("factors", factor_key(probed)) is None else probed

    def analysis_shown(self, key: Sequence[Any] | None) -> lrcore.Analysis | None:
        """The analysis with this key, while it is in the object cache."""
        return self.objects.peek("analysis", tuple(key)) if key else None

    def refits(self, recipe: lrcore.Recipe) -> bool:
        """Whether compressing by a recipe refits: see `lrcore.refits`, which raises InputError.

        Kept beyond the model, so that a redraw does not load it again.
        """
        key = (model_key(recipe), recipe.method, recipe.refit)
        return self.objects.get(
            "refits", key, lambda: lrcore.refits(recipe, self.dense(recipe).network)
        )

    def pace(self, recipe: lrcore.Recipe) -> float:
        """Seconds per token of a recipe's model, see `lrcore.seconds_per_token`."""

        def make() -> float:
            return lrcore.seconds_per_token(self.dense(recipe), self.calibration(recipe))

        return self.objects.get("pace", model_key(recipe), make)

    def peek_pace(self, recipe: lrcore.Recipe) -> float | None:
        return self.objects.peek("pace", model_key(recipe))

    # --- plans; None while the factors they need are not in the object cache ---

    def plan(self, recipe: lrcore.Recipe | None) -> lrcore.RankPlan | None:
        """The rank plan of a recipe: the one that compressing gives where that is known, see
        `drafted`. Raises InputError for a budget that cannot be met.
        """
        return None if recipe is None else self.plan_with(recipe, recipe)

    def uniform_plan(self, recipe: lrcore.Recipe) -> lrcore.RankPlan | None:
        """Uniform ranks at a recipe's budget. Raises InputError as `plan` does."""
        return self.plan_with(recipe, uniform(recipe))

    def policy_plan(self, recipe: lrcore.Recipe) -> lrcore.RankPlan | None:
        """The plan of the policy with nothing set by hand. Raises InputError as `plan` does."""
        return self.plan_with(recipe, recipe.with_(overrides={}))

    def plan_with(self, base: lrcore.Recipe, recipe: lrcore.Recipe) -> lrcore.RankPlan | None:
        """The plan of a recipe by the factors of another one, `base`, of the same method.

        Raises InputError as `plan` does, and where the evidence that the policy needs is missing.
        """
        factors = self.peek_factors(base)
        if factors is None:
            return None

        def make() -> lrcore.RankPlan | lrcore.InputError:
            try:
                self.check_target(recipe)
                return lrcore.allocate(factors, recipe)
            except lrcore.InputError as error:
                return error  # as often asked for as a plan, while a slider is too far

        plan = self.objects.get("plan", plan_key(self.factored_by(base), recipe), make)
        if isinstance(plan, lrcore.InputError):
            raise lrcore.InputError(str(plan))
        return plan

    def check_target(self, recipe: lrcore.Recipe) -> None:
        """Raises InputError where no ranks of a recipe's method would run in its target. What is
        found is kept beyond the model.
        """
        if lrcore.TARGETS[recipe.target].takes_code:
            return

        def make() -> str:
            try:
                lrcore.check_target(self.dense(recipe), recipe)
            except lrcore.InputError as error:
                return str(error)
            return ""

        key = (model_key(recipe), recipe.method, recipe.target)
        if reason := self.objects.get("fits", key, make):
            raise lrcore.InputError(reason)

    def drafted(self, recipe: lrcore.Recipe) -> bool:
        """Whether the plan of a recipe is still to be measured against uniform ranks, which
        compressing gives where they are better. Raises InputError as `plan` does.
        """
        plan = self.plan(recipe)
        if plan is None or plan.against_uniform is not None or not policy_row(recipe)["checked"]:
            return False
        uniform_plan = self.plan_with(recipe, even(recipe))
        return uniform_plan is not None and plan.ranks != uniform_plan.ranks

    # --- live figures ---

    def live_key(self, recipe: lrcore.Recipe) -> str:
        """The key of a plan's live figure, "" while its factors are not here.

        Raises InputError as `plan` does.
        """
        factors, plan = self.peek_factors(recipe), self.plan(recipe)
        return "" if factors is None or plan is None else figure_key(factors, recipe, plan)

    def live_request(
        self, recipe: lrcore.Recipe, browser: Hashable, windows: int = WINDOWS
    ) -> LiveRequest | None:
        """What to ask `live` for; None while the factors are not here, or where the model is too
        large to be measured without a click, which more windows are. Raises InputError as `plan`
        does.
        """
        return self._request(recipe, recipe, browser, windows)

    def live_request_uniform(
        self, recipe: lrcore.Recipe, browser: Hashable, windows: int = WINDOWS
    ) -> LiveRequest | None:
        """The same for uniform ranks at the recipe's budget. Raises InputError as `plan` does."""
        return self._request(recipe, uniform(recipe), browser, windows)

    def _request(
        self, base: lrcore.Recipe, recipe: lrcore.Recipe, browser: Hashable, windows: int
    ) -> LiveRequest | None:
        factors, plan = self.peek_factors(base), self.plan_with(base, recipe)
        if factors is None or plan is None:
            return None
        try:
            refits = self.refits(recipe)
        except lrcore.InputError:
            refits = False  # compressing refuses it at once, and the figure says why
        if windows == WINDOWS and not affordable(factors, recipe, refits):
            return None
        checks = self.drafted(recipe) and affordable(factors, recipe, refits, checks=True)
        key = figure_key(factors, recipe, plan)
        prompt = self.shown.prompt(browser)
        return LiveRequest(key, browser, factors, recipe, plan, checks, windows, prompt)

    # --- methods side by side ---

    def by_method(self, recipe: lrcore.Recipe) -> list[lrcore.Recipe]:
        """The recipe for every method; the others have their default options and no ranks set by
        hand.
        """
        others = [
            recipe.with_(method=row["name"], options={}, component_ratios={}, overrides={})
            for row in lrcore.methods()
        ]
        return [recipe if other.method == recipe.method else other for other in others]

    def methods_factorised(self, recipe: lrcore.Recipe) -> list[str]:
        """The methods whose factors are in the object cache, each with the evidence at hand that
        serves every budget.
        """
        serving = [
            recipe.with_(policy=row["name"]) for row in lrcore.policies() if not row["one_budget"]
        ]
        policies = {lrcore.evidence_key(one): one.policy for one in serving}
        return [
            " ".join((other.method, *evidence))
            for other in self.by_method(recipe)
            for evidence, policy in policies.items()
            if self.peek_factors(other.with_(policy=policy)) is not None
        ]

    # --- runs ---

    def chosen_runs(self, ids: Sequence[str] | None) -> list[lrcore.Run]:
        """The runs with these ids, without those that are gone."""
        if not ids:  # nothing to look up on the disk
            return []
        known = set(self.runs.ids())
        return [self.runs.get(run_id) for run_id in ids if run_id in known]

    def keep(self, name: str, recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> lrcore.Run:
        """Keep a model made by a recipe as a run, on disk and in the object cache."""
        run = self.runs.write(name, recipe, model)
        self.objects.put("small", run.id, model)
        return run

    def awaited(self, recipe: lrcore.Recipe | None) -> list[JobRecord]:
        """The jobs on the recipe's model that run or wait; none without a recipe."""
        of = ((one, getattr(one.job, "recipe", None)) for one in self.jobs.waiting())
        return [one for one, own in of if recipe and own and own.model == recipe.model]

    def delete(self, run_id: str) -> None:
        """Delete a run. Raises InputError for an id that is not there."""
        self.runs.delete(run_id)
        self.objects.drop("small", run_id)
