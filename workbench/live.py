"""The actual perplexity of the plan on show: compressed in memory and measured on a small held-out
sample, in the background.

One worker of its own, outside the queue of jobs. Each browser has one request, its newest; work on
an older one stops at the next layer or batch. The worker reads a dense model of its own: a job may
exchange the layers of the shared one for a moment while it streams through it.
"""

import hashlib
import json
import logging
import math
import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import lrcore

from .keys import model_key, plan_key
from .objects import ObjectCache
from .priority import LIVE, give_way

log = logging.getLogger("workbench.live")

WINDOWS, LENGTH = 8, 128  # of the sample: about a thousand tokens
MORE = 64  # windows on request: eight thousand tokens
# seconds without a new request before work begins: a slider that moves has the processor for itself
STILL = 0.25
# parameters x tokens run through them that are worth measuring without a click: a few seconds on
# two cores
MOST = 2e11
CHECKED = 3 * 32 * 128  # tokens that settling a plan runs: the dense model's and two plans'
ACCELERATED = 100  # times as much where the model is not on the CPU
KEPT = 256  # figures remembered


@dataclass(frozen=True)
class Figure:
    """perplexity of the compressed and of the dense model on the same windows; protocol says which.

    error: why there is none. losses: of the compressed model, mean by window, nats/token. asked:
    how many windows; the text may have fewer.
    """

    perplexity: float | None = None
    dense: float | None = None
    protocol: dict[str, Any] | None = None
    error: str = ""
    losses: tuple[float, ...] = ()
    asked: int = WINDOWS

    def above(self, other: "Figure") -> tuple[float, float]:
        """The perplexity above another one, as a share of it, and the standard error of that:
        paired by window, NaN for fewer than two. Both on the windows that either has: those of a
        smaller sample are the first ones of a larger.
        """
        own, others = self.beside(other), other.beside(self)
        assert own is not None
        assert others is not None
        change = own / others - 1
        steps = [one - two for one, two in zip(self.losses, other.losses, strict=False)]
        if len(steps) < 2:
            return change, math.nan
        return change, (1 + change) * statistics.stdev(steps) / math.sqrt(len(steps))

    def beside(self, other: "Figure") -> float | None:
        """The perplexity on the windows that another figure has as well."""
        if len(other.losses) >= len(self.losses):
            return self.perplexity
        return math.exp(statistics.fmean(self.losses[: len(other.losses)]))

    @property
    def held_out(self) -> bool:
        """Whether calibration has not seen the windows: only then a verdict may rest on it."""
        return not (self.protocol or {}).get("on_calibration_text")


@dataclass(frozen=True)
class LiveRequest:
    """What a browser shows now.

    key: of all that its figure depends on (`figure_key`); it marks the place on the page where the
    figure belongs. checks: whether the plan is first measured against uniform ranks. windows: how
    many to measure on. when: seconds of the monotonic clock.
    """

    key: str
    browser: Hashable
    factors: lrcore.Factorisation
    recipe: lrcore.Recipe
    plan: lrcore.RankPlan
    checks: bool = False
    windows: int = WINDOWS
    when: float = field(default_factory=time.monotonic)


def figure_key(factors: lrcore.Factorisation, recipe: lrcore.Recipe, plan: lrcore.RankPlan) -> str:
    """A digest of all that a live figure depends on; equal ranks by another policy share it."""
    ranks = sorted([*slot, rank] for slot, rank in plan.ranks.items())
    settings = [
        recipe.model,
        recipe.revision,
        recipe.dtype,
        recipe.device,
        recipe.data,
        recipe.calibration,
        recipe.refit,
    ]
    options = sorted(asdict(factors.options).items())
    parts = [factors.calibration.key, factors.method, options, settings, ranks]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def tokens_run(recipe: lrcore.Recipe, refits: bool) -> int:
    """Tokens that pass through the model for one figure; a sequential or refitted compression
    runs the calibration windows as well.
    """
    streams = 2 * refits + (recipe.calibration == "sequential" and not refits)
    return WINDOWS * LENGTH + streams * recipe.samples * recipe.seq_len


def affordable(
    factors: lrcore.Factorisation, recipe: lrcore.Recipe, refits: bool, checks: bool = False
) -> bool:
    """Whether the model is small enough to be measured without a click, for the sample and for what
    its compression runs. refits: see `lrcore.refits`; checks: see `LiveRequest`.
    """
    most = MOST * (1 if str(factors.calibration.device) == "cpu" else ACCELERATED)
    tokens = tokens_run(recipe, refits) + checks * CHECKED
    return factors.shape.parameters * tokens <= most


class Live:
    """The worker. `peek` gives a figure that is known; `newest` is the key of a browser's last
    request.
    """

    def __init__(self, objects: ObjectCache) -> None:
        self.objects = objects
        self._known: OrderedDict[str, Figure] = OrderedDict()
        self._count = 0
        self._requests: OrderedDict[Hashable, LiveRequest] = OrderedDict()
        self._newest: OrderedDict[Hashable, str] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="live", daemon=True).start()

    def request(self, request: LiveRequest) -> None:
        """Request a figure, instead of what this browser requested before."""
        with self._changed:
            more = self._requests.get(request.browser)  # drawn again while more is measured
            if more and more.key == request.key and more.windows > request.windows:
                return
            self._newest[request.browser] = request.key
            self._newest.move_to_end(request.browser)
            while len(self._newest) > KEPT:
                self._newest.popitem(last=False)
            self._requests.pop(request.browser, None)
            known = self._known.get(request.key)
            if request.checks or known is None or known.asked < request.windows:
                self._requests[request.browser] = request
            self._changed.notify()

    def forget(self, browser: Hashable) -> None:
        """A browser requests nothing any more."""
        with self._changed:
            self._newest.pop(browser, None)
            self._requests.pop(browser, None)

    def measure(
        self, request: LiveRequest, dense: lrcore.LoadedModel, progress: lrcore.Progress
    ) -> None:
        """Measure what is not known yet in the thread of the caller, a job, which is as urgent as
        its other work. dense: a model that no other thread changes. Raises Cancelled where
        `progress` does.
        """
        if self.peek(request.key) is None:
            self._keep(request.key, self._figure(request, dense, progress))

    def count(self) -> int:
        """How many figures were measured so far: where it changes, there may be more to show."""
        return self._count

    def peek(self, key: str | None) -> Figure | None:
        with self._changed:
            return self._known.get(key)

    def measures_more(self, browser: Hashable) -> bool:
        """Whether what a browser requested last is still to be measured on MORE windows."""
        with self._changed:
            return browser in self._requests and self._requests[browser].windows > WINDOWS

    def newest(self, browser: Hashable) -> str | None:
        return self._newest.get(browser)

    def _run(self) -> None:
        give_way(LIVE)
        while True:
            request = self._next()

            def go_on(stage: str, done: int, total: int, key: str = request.key) -> None:
                if all(other.key != key for other in list(self._requests.values())):
                    raise lrcore.Cancelled(stage)

            with suppress(lrcore.Cancelled):
                self._keep(request.key, self._figure(request, None, go_on))

    def _keep(self, key: str, figure: Figure) -> None:
        """Remember a figure; who requested it is served."""
        with self._changed:
            self._known[key] = figure
            self._count += 1
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            served = [
                name
                for name, other in self._requests.items()
                if other.key == key and other.windows <= figure.asked
            ]
            for browser in served:
                del self._requests[browser]

    def _next(self) -> LiveRequest:
        """The oldest request of those that have been still for a moment."""
        with self._changed:
            while True:
                oldest = min(
                    self._requests.values(), key=lambda request: request.when, default=None
                )
                wait = None if oldest is None else oldest.when + STILL - time.monotonic()
                if wait is not None and wait <= 0:
                    return oldest
                self._changed.wait(wait)

    def _figure(
        self, request: LiveRequest, dense: lrcore.LoadedModel | None, progress: lrcore.Progress
    ) -> Figure:
        """Measured; with an error where that failed. dense: the worker's own where it is None."""
        try:
            return self._measure(request, dense, progress)
        except lrcore.Cancelled:
            raise
        except lrcore.InputError as error:
            return Figure(error=lrcore.without_paths(str(error)), asked=request.windows)
        except Exception as error:
            if short := lrcore.shortage(error):
                return Figure(error=str(short), asked=request.windows)
            log.exception("the live figure failed")
            said = f"{type(error).__name__}. The server's log has the details."
            return Figure(error=said, asked=request.windows)

    def _measure(
        self, request: LiveRequest, dense: lrcore.LoadedModel | None, progress: lrcore.Progress
    ) -> Figure:
        recipe = request.recipe
        where = model_key(recipe)
        if dense is None:
            dense = self.objects.get("live", where, lambda: lrcore.load(*where))
        sample = lrcore.EvaluationSettings(recipe.data, request.windows, LENGTH)
        sample = sample.apart_from([recipe.data])
        before = self.objects.get(
            "live dense",
            (*where, recipe.data, request.windows),
            lambda: lrcore.evaluate(dense, sample, batch=2, progress=progress),
        )
        if request.checks:
            settled = lrcore.settle(dense, request.factors, recipe)
            self.objects.put("plan", plan_key(recipe, recipe), settled)
            if settled.ranks != request.plan.ranks:  # nobody is given these
                said = settled.account.planned.not_given(recipe.policy)
                return Figure(error=said, asked=request.windows)
        small = lrcore.compress(dense, recipe, request.factors, request.plan, progress)
        after = lrcore.evaluate(small, sample, batch=2, progress=progress)
        own, dense_own = after.to_dict()["perplexity"], before.to_dict()["perplexity"]
        return Figure(own, dense_own, after.protocol, "", after.window_nll, request.windows)
