"""Measured perplexity and continuation of the displayed plan, on a small held-out sample.

One background worker compresses the model in memory and measures it, outside the job queue. Each
browser has one active request, and work on an older request stops at the next layer or batch. The
worker has a separate copy of the dense model, because a job may temporarily replace layers of the
shared copy.
"""

import hashlib
import logging
import math
import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import lrcore
from lrcore.compression.solve.compress_layers import window_passes
from lrcore.compression.solve.distill import before_distillation, full_schedule
from lrcore.compression.solve.factorize import Factorization
from lrcore.ranks.plan import RankPlan
from lrcore.system.as_json import json_text
from lrcore.system.errors import Cancelled
from lrcore.system.path_access import strip_paths
from lrcore.system.progress import Progress
from lrcore.system.resource_errors import resource_error

from ..base import process
from .continuation import Continuation, compare_continuations, continue_prompt
from .keys import BYTES, model_key, plan_key
from .objects import ObjectCache

log = logging.getLogger("workbench.state.live")

WINDOWS, LENGTH = 8, 128  # windows and tokens per window of the sample: about 1,000 tokens
MORE_WINDOWS = 64  # windows on request: 8,000 tokens
# Seconds without a new request before work begins, so that redraws have the processor while a
# slider moves.
SETTLE_SECONDS = 0.25
# Limit for automatic measurements, parameters x tokens: a few seconds on two cores.
MAX_PARAMETER_TOKENS = 5e11
# Tokens that `choose_plan` runs: 32 windows of 128 tokens with the dense model and with two plans.
CHECK_TOKENS = 3 * 32 * 128
ACCELERATOR_FACTOR = 100  # factor on the limit if the model is not on the CPU
MAX_FIGURES = 1024  # the most recently used figures are stored


@dataclass(frozen=True)
class LiveFigure:
    """Perplexity of the compressed and of the dense model on the same windows.

    protocol: see `Evaluation`. error: why there is no figure. losses: mean loss of the compressed
    model by window, nats/token. windows: number of requested windows; the text may have fewer.
    counts_bytes: whether the plan has a budget of bytes.
    """

    perplexity: float | None = None
    dense: float | None = None
    protocol: dict[str, Any] | None = None
    error: str = ""
    losses: tuple[float, ...] = ()
    windows: int = WINDOWS
    counts_bytes: bool = False

    def relative_change(self, reference: "LiveFigure") -> tuple[float, float]:
        """Return the relative difference to a reference perplexity, and its standard error.

        Both perplexities are for the windows of the smaller sample, which are the first windows of
        the larger sample. The error is of paired differences, and NaN for fewer than two windows.
        """
        perplexity = self.perplexity_on_windows_of(reference)
        reference_perplexity = reference.perplexity_on_windows_of(self)
        assert perplexity is not None
        assert reference_perplexity is not None
        change = perplexity / reference_perplexity - 1
        differences = [a - b for a, b in zip(self.losses, reference.losses, strict=False)]
        if len(differences) < 2:
            return change, math.nan
        error = (1 + change) * statistics.stdev(differences) / math.sqrt(len(differences))
        return change, error

    def perplexity_on_windows_of(self, reference: "LiveFigure") -> float | None:
        """Return the perplexity on the windows that this figure and a reference have in common."""
        if len(reference.losses) >= len(self.losses):
            return self.perplexity
        return math.exp(statistics.fmean(self.losses[: len(reference.losses)]))

    def restricted_to(self, reference: "LiveFigure") -> "LiveFigure":
        """Return the figure on the windows that it and a reference figure have in common."""
        losses = self.losses[: len(reference.losses)]
        is_smaller = len(reference.losses) < len(self.losses)
        return replace(
            self,
            perplexity=self.perplexity_on_windows_of(reference),
            dense=reference.dense if is_smaller else self.dense,
            losses=losses,
        )

    @property
    def tokens(self) -> int:
        """Number of tokens of the measured windows."""
        return LENGTH * (len(self.losses) or self.windows)

    @property
    def is_held_out(self) -> bool:
        """Whether the windows are held out from calibration, as verdicts require."""
        return not (self.protocol or {}).get("on_calibration_text")


@dataclass(frozen=True)
class LiveRequest:
    """A request for the figure of the plan that a browser displays.

    key: see `figure_key`; the page marks the cell of the figure with it. checks: whether the plan
    is first compared with uniform ranks. windows: number of windows to measure. prompt: text that
    the models continue after the figure was measured; "" for none. when: time of the request,
    seconds of the monotonic clock.
    """

    key: str
    browser: Hashable
    factors: Factorization
    recipe: lrcore.Recipe
    plan: RankPlan
    checks: bool = False
    windows: int = WINDOWS
    prompt: str = ""
    when: float = field(default_factory=time.monotonic)


class MeasuredPlan(NamedTuple):
    """A plan that has a figure. removed: achieved fraction of what the budget counts."""

    model: tuple
    data: str
    method: str
    policy: str
    budget: str
    removed: float


def figure_key(factors: Factorization, recipe: lrcore.Recipe, plan: RankPlan) -> str:
    """Return a digest of all data that a live figure depends on.

    Policies that choose equal ranks share the key.
    """
    settings = [
        recipe.model,
        recipe.revision,
        recipe.dtype,
        recipe.device,
        recipe.data,
        recipe.calibration_mode,
        recipe.refit,
    ]
    options = sorted(asdict(factors.options).items())
    parts = [factors.calibration.key, factors.method, options, settings, *plan.key]
    return hashlib.sha256(json_text(parts).encode()).hexdigest()[:16]


def tokens_run(recipe: lrcore.Recipe, has_refit: bool) -> int:
    """Return the number of tokens that pass through the model for a figure.

    The figure runs its sample, and the compression some passes over the calibration windows.
    """
    passes = window_passes(recipe, has_refit)
    compressing = passes * recipe.samples * recipe.seq_len
    return WINDOWS * LENGTH + compressing + recipe.distills * full_schedule().tokens


def is_affordable(
    factors: Factorization, recipe: lrcore.Recipe, has_refit: bool, checks: bool = False
) -> bool:
    """Return True if the figure can be measured automatically.

    This depends on the size of the model and on the tokens that compression runs. has_refit: see
    `Store.has_refit`. checks: see `LiveRequest`.
    """
    is_cpu = str(factors.calibration.device) == "cpu"
    limit = MAX_PARAMETER_TOKENS * (1 if is_cpu else ACCELERATOR_FACTOR)
    tokens = tokens_run(recipe, has_refit) + checks * CHECK_TOKENS
    return factors.shape.parameters * tokens <= limit


class LiveMeasurements:
    """The worker and its figures.

    `peek` returns a measured figure, `newest` the key of the last request of a browser.
    """

    def __init__(self, objects: ObjectCache) -> None:
        self.objects = objects
        self._figures: OrderedDict[str, LiveFigure] = OrderedDict()
        self._plans: OrderedDict[MeasuredPlan, str] = OrderedDict()  # keys of figures
        self._continuations: OrderedDict[tuple[str, str], Continuation] = OrderedDict()
        self._count = 0
        self._requests: OrderedDict[Hashable, LiveRequest] = OrderedDict()
        self._newest: OrderedDict[Hashable, str] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="live", daemon=True).start()

    def request(self, request: LiveRequest) -> None:
        """Request a figure in place of the previous request of the browser."""
        with self._changed:
            pending = self._requests.get(request.browser)
            # a redraw does not replace a pending request for more windows of the same plan
            if pending and pending.key == request.key and pending.windows > request.windows:
                self._requests[request.browser] = replace(pending, prompt=request.prompt)
                return
            self._newest[request.browser] = request.key
            self._newest.move_to_end(request.browser)
            while len(self._newest) > MAX_FIGURES:
                self._newest.popitem(last=False)
            self._requests.pop(request.browser, None)
            if request.checks or self._lacks_figure(request) or self._lacks_text(request):
                self._requests[request.browser] = request
            if request.key in self._figures:
                self._name_plan(request)  # equal ranks may have been measured with another policy
            self._changed.notify()

    def drop_request(self, browser: Hashable) -> None:
        """Drop the request of a browser."""
        with self._changed:
            self._newest.pop(browser, None)
            self._requests.pop(browser, None)

    def measure(self, request: LiveRequest, dense: lrcore.LoadedModel, progress: Progress) -> None:
        """Measure a missing figure in the thread of the caller, with the priority of a job.

        dense: a model that no other thread modifies. Passes on Cancelled from `progress`.
        """
        if self.peek(request.key) is None:
            self._store_figure(request, self._figure_or_error(request, dense, progress)[0])

    def count(self) -> int:
        """Return the number of figures measured so far, by which the page detects new figures."""
        return self._count

    def peek(self, key: str | None) -> LiveFigure | None:
        """Return a measured figure, or None.

        Access counts as use: a page that waits for one of two figures polls both, so the measured
        figure is not dropped in the meantime.
        """
        with self._changed:
            if key in self._figures:
                self._figures.move_to_end(key)
            return self._figures.get(key)

    def measured_plans(self) -> list[tuple[MeasuredPlan, LiveFigure]]:
        """Return the plans whose figures are held out from calibration, without manual ranks."""
        with self._changed:
            plans = [(plan, self._figures.get(key)) for plan, key in self._plans.items()]
        return [
            (plan, figure)
            for plan, figure in plans
            if figure is not None and figure.perplexity is not None and figure.is_held_out
        ]

    def continuation(self, key: str | None, prompt: str) -> Continuation | None:
        """Return the continuations of a prompt, or None until they are available."""
        with self._changed:
            return None if key is None else self._continuations.get((key, prompt))

    def is_pending(self, browser: Hashable) -> bool:
        """Return True if the request of a browser is not finished."""
        with self._changed:
            return browser in self._requests

    def is_measuring_more(self, browser: Hashable) -> bool:
        """Return True if a request of a browser for MORE_WINDOWS is not finished."""
        with self._changed:
            return browser in self._requests and self._requests[browser].windows > WINDOWS

    def is_busy(self) -> bool:
        """Return True if a request of any browser is not finished."""
        return bool(self._requests)

    def newest(self, browser: Hashable) -> str | None:
        return self._newest.get(browser)

    def _lacks_figure(self, request: LiveRequest) -> bool:
        figure = self._figures.get(request.key)
        return figure is None or figure.windows < request.windows

    def _lacks_text(self, request: LiveRequest) -> bool:
        """Return True if a continuation is missing; failed plans have none."""
        figure = self._figures.get(request.key)
        is_failed = figure is not None and bool(figure.error)
        is_missing = (request.key, request.prompt) not in self._continuations
        return bool(request.prompt) and not is_failed and is_missing

    def _run(self) -> None:
        process.lower_priority(process.LIVE_NICENESS)
        while True:
            request = self._next()

            def check_canceled(stage: str, done: int, total: int, key: str = request.key) -> None:
                if all(pending.key != key for pending in list(self._requests.values())):
                    raise Cancelled(stage)

            with process.released_memory(), suppress(Cancelled):
                self._serve(request, check_canceled)

    def _serve(self, request: LiveRequest, progress: Progress) -> None:
        """Measure the figure, then continue the prompt with the same compressed model."""
        small = None
        if request.checks or self._lacks_figure(request):
            figure, small = self._figure_or_error(request, None, progress)
            self._store_figure(request, figure)
        if self._lacks_text(request):
            self._store_text(request, self._continue(request, small, progress))

    def _store_figure(self, request: LiveRequest, figure: LiveFigure) -> None:
        """Store a figure, and drop the requests that it completes."""
        key = request.key
        with self._changed:
            self._figures[key] = figure
            self._name_plan(request)
            self._count += 1
            while len(self._figures) > MAX_FIGURES:
                self._figures.popitem(last=False)
            self._drop_completed(key)

    def _name_plan(self, request: LiveRequest) -> None:
        """Store method, policy and size of a plan with a figure, unless it has manual ranks."""
        recipe, account = request.recipe, request.plan.account
        if recipe.rank_overrides:
            return
        names = (recipe.data, recipe.method, recipe.policy, account.budget)
        plan = MeasuredPlan(model_key(recipe), *names, account.achieved)
        self._plans[plan] = request.key
        self._plans.move_to_end(plan)
        while len(self._plans) > MAX_FIGURES:
            self._plans.popitem(last=False)

    def _store_text(self, request: LiveRequest, continuation: Continuation) -> None:
        with self._changed:
            self._continuations[request.key, request.prompt] = continuation
            while len(self._continuations) > MAX_FIGURES:
                self._continuations.popitem(last=False)
            self._drop_completed(request.key)

    def _drop_completed(self, key: str) -> None:
        for browser, request in list(self._requests.items()):
            is_missing = self._lacks_figure(request) or self._lacks_text(request)
            if request.key == key and not is_missing:
                del self._requests[browser]

    def _next(self) -> LiveRequest:
        """Wait for a request older than SETTLE_SECONDS and return the oldest, figures first."""
        with self._changed:
            while True:
                current_time, requests = time.monotonic(), self._requests.values()
                ready = [
                    request for request in requests if request.when + SETTLE_SECONDS <= current_time
                ]
                if ready:
                    return min(ready, key=lambda r: (not self._lacks_figure(r), r.when))
                oldest = min((request.when for request in requests), default=None)
                self._changed.wait(
                    None if oldest is None else oldest + SETTLE_SECONDS - current_time
                )

    def _figure_or_error(
        self, request: LiveRequest, dense: lrcore.LoadedModel | None, progress: Progress
    ) -> tuple[LiveFigure, lrcore.LoadedModel | None]:
        """Return the figure and the compressed model; after an exception, a figure with the error.

        dense: None for the dense model of the worker.
        """
        try:
            return self._figure(request, dense or self._dense(request), progress)
        except Exception as error:
            return LiveFigure(error=_error_message(error), windows=request.windows), None

    def _continue(
        self, request: LiveRequest, small: lrcore.LoadedModel | None, progress: Progress
    ) -> Continuation:
        """Continue the prompt. small: the compressed model of the request, if available."""
        prompt, key = request.prompt, model_key(request.recipe)
        try:
            dense = self._dense(request)
            small = small or self._compressed(request, dense, progress)
            dense_tokens = self.objects.get(
                "live prompt", (*key, prompt), lambda: continue_prompt(dense, prompt, progress)
            )
            return compare_continuations(dense, small, prompt, dense_tokens, progress)
        except Exception as error:
            return Continuation(error=_error_message(error))

    def _dense(self, request: LiveRequest) -> lrcore.LoadedModel:
        """Return the dense model of the worker."""
        key = model_key(request.recipe)
        return self.objects.get("live", key, lambda: lrcore.load(*key))

    def _compressed(
        self, request: LiveRequest, dense: lrcore.LoadedModel, progress: Progress
    ) -> lrcore.LoadedModel:
        """Return the compressed model, without a distillation by default, which takes minutes."""
        recipe = before_distillation(request.recipe, dense)
        return lrcore.compress(dense, recipe, request.factors, request.plan, progress)

    def _figure(
        self, request: LiveRequest, dense: lrcore.LoadedModel, progress: Progress
    ) -> tuple[LiveFigure, lrcore.LoadedModel | None]:
        recipe, windows = request.recipe, request.windows
        sample = lrcore.EvaluationSettings(recipe.data, windows, LENGTH)
        sample = sample.held_out_from([recipe.data])
        dense_evaluation = self.objects.get(
            "live dense",
            (*model_key(recipe), recipe.data, windows),
            lambda: lrcore.evaluate(dense, sample, batch=2, progress=progress),
        )
        if request.checks:
            plan = lrcore.choose_plan(dense, request.factors, recipe)
            self.objects.put("plan", plan_key(recipe, recipe), plan)
            if plan.key != request.plan.key:  # compression uses uniform ranks instead
                notice = plan.account.planned.uniform_notice(recipe.policy)
                return LiveFigure(error=notice, windows=windows), None
        small = self._compressed(request, dense, progress)
        evaluation = lrcore.evaluate(small, sample, batch=2, progress=progress)
        figure = LiveFigure(
            evaluation.to_dict()["perplexity"],
            dense_evaluation.to_dict()["perplexity"],
            evaluation.protocol,
            "",
            evaluation.window_nll,
            windows,
            counts_bytes=request.plan.budget == BYTES,
        )
        return figure, small


def _error_message(error: Exception) -> str:
    if isinstance(error, lrcore.InputError):
        return strip_paths(str(error))
    if resource := resource_error(error):
        return strip_paths(str(resource))
    log.error("the live figure failed", exc_info=error)
    return f"{type(error).__name__}. The server's log has the details."
