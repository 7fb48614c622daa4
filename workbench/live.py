"""The actual perplexity of the plan on show: compressed in memory and measured on a small held-out
sample, in the background; and how it continues a prompt.

One worker of its own, outside the queue of jobs. Each browser has one request, its newest; work on
an older one stops at the next layer or batch. The worker reads a dense model of its own: a job may
exchange the layers of the shared one for a moment while it streams through it.
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
from typing import Any

import lrcore

from . import heap
from .continuation import Continuation, compare, continued
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
TRAINED = 6  # passes over the calibration windows that training the MLPs counts as, gradients too
CHECKED = 3 * 32 * 128  # tokens that settling a plan runs: the dense model's and two plans'
ACCELERATED = 100  # times as much where the model is not on the CPU
KEPT = 1024  # figures remembered: those that a page looked for last


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

    def on_those_of(self, other: "Figure") -> "Figure":
        """The same on the windows that another figure has as well."""
        losses = self.losses[: len(other.losses)]
        return replace(self, perplexity=self.beside(other), losses=losses)

    @property
    def held_out(self) -> bool:
        """Whether calibration has not seen the windows: only then a verdict may rest on it."""
        return not (self.protocol or {}).get("on_calibration_text")


@dataclass(frozen=True)
class LiveRequest:
    """What a browser shows now.

    key: of all that its figure depends on (`figure_key`); it marks the place on the page where the
    figure belongs. checks: whether the plan is first measured against uniform ranks. windows: how
    many to measure on. prompt: what the models continue once the figure is known; "" for nothing.
    when: seconds of the monotonic clock.
    """

    key: str
    browser: Hashable
    factors: lrcore.Factorisation
    recipe: lrcore.Recipe
    plan: lrcore.RankPlan
    checks: bool = False
    windows: int = WINDOWS
    prompt: str = ""
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
    return hashlib.sha256(lrcore.json_text(parts).encode()).hexdigest()[:16]


def tokens_run(recipe: lrcore.Recipe, refits: bool) -> int:
    """Tokens that pass through the model for one figure; a sequential or refitted compression
    runs the calibration windows as well, and more often where it trains.
    """
    streams = 2 * refits + (recipe.calibration == "sequential" and not refits)
    streams += TRAINED * recipe.trains
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
        self._continued: OrderedDict[tuple[str, str], Continuation] = OrderedDict()
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
                self._requests[request.browser] = replace(more, prompt=request.prompt)
                return
            self._newest[request.browser] = request.key
            self._newest.move_to_end(request.browser)
            while len(self._newest) > KEPT:
                self._newest.popitem(last=False)
            self._requests.pop(request.browser, None)
            if request.checks or self._lacks_figure(request) or self._lacks_text(request):
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
            self._keep(request.key, self._figure(request, dense, progress)[0])

    def count(self) -> int:
        """How many figures were measured so far: where it changes, there may be more to show."""
        return self._count

    def peek(self, key: str | None) -> Figure | None:
        """What is known. A page that waits for one of two figures looks for both again and again,
        so that the other one stays meanwhile: nobody would request it anew.
        """
        with self._changed:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def continuation(self, key: str | None, prompt: str) -> Continuation | None:
        """How the models continue a prompt; None while that is not known."""
        with self._changed:
            return None if key is None else self._continued.get((key, prompt))

    def unfinished(self, browser: Hashable) -> bool:
        """Whether something that a browser requested last is still to be done."""
        with self._changed:
            return browser in self._requests

    def measures_more(self, browser: Hashable) -> bool:
        """Whether what a browser requested last is still to be measured on MORE windows."""
        with self._changed:
            return browser in self._requests and self._requests[browser].windows > WINDOWS

    def busy(self) -> bool:
        """Whether anybody's request is still to be done."""
        return bool(self._requests)

    def newest(self, browser: Hashable) -> str | None:
        return self._newest.get(browser)

    def _lacks_figure(self, request: LiveRequest) -> bool:
        known = self._known.get(request.key)
        return known is None or known.asked < request.windows

    def _lacks_text(self, request: LiveRequest) -> bool:
        """A plan that could not be measured continues nothing either."""
        known = self._known.get(request.key)
        failed = known is not None and bool(known.error)
        lacks = (request.key, request.prompt) not in self._continued
        return bool(request.prompt) and not failed and lacks

    def _run(self) -> None:
        give_way(LIVE)
        while True:
            request = self._next()

            def go_on(stage: str, done: int, total: int, key: str = request.key) -> None:
                if all(other.key != key for other in list(self._requests.values())):
                    raise lrcore.Cancelled(stage)

            with heap.given_back(), suppress(lrcore.Cancelled):
                self._serve(request, go_on)

    def _serve(self, request: LiveRequest, progress: lrcore.Progress) -> None:
        """The figure first; then, of the model that it was measured on, the continuation."""
        small = None
        if request.checks or self._lacks_figure(request):
            figure, small = self._figure(request, None, progress)
            self._keep(request.key, figure)
        if self._lacks_text(request):
            self._keep_text(request, self._continue(request, small, progress))

    def _keep(self, key: str, figure: Figure) -> None:
        """Remember a figure; who requested nothing else is served."""
        with self._changed:
            self._known[key] = figure
            self._count += 1
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            self._drop_served(key)

    def _keep_text(self, request: LiveRequest, continuation: Continuation) -> None:
        with self._changed:
            self._continued[request.key, request.prompt] = continuation
            while len(self._continued) > KEPT:
                self._continued.popitem(last=False)
            self._drop_served(request.key)

    def _drop_served(self, key: str) -> None:
        for browser, one in list(self._requests.items()):
            if one.key == key and not (self._lacks_figure(one) or self._lacks_text(one)):
                del self._requests[browser]

    def _next(self) -> LiveRequest:
        """The oldest request of those that have been still for a moment, figures before texts."""
        with self._changed:
            while True:
                now, waiting = time.monotonic(), self._requests.values()
                ready = [one for one in waiting if one.when + STILL <= now]
                if ready:
                    return min(ready, key=lambda one: (not self._lacks_figure(one), one.when))
                first = min((one.when for one in waiting), default=None)
                self._changed.wait(None if first is None else first + STILL - now)

    def _figure(
        self, request: LiveRequest, dense: lrcore.LoadedModel | None, progress: lrcore.Progress
    ) -> tuple[Figure, lrcore.LoadedModel | None]:
        """Measured, and the compressed model; with an error where that failed. dense: the worker's
        own where it is None.
        """
        try:
            return self._measure(request, dense or self._dense(request), progress)
        except Exception as error:
            return Figure(error=_said(error), asked=request.windows), None

    def _continue(
        self, request: LiveRequest, small: lrcore.LoadedModel | None, progress: lrcore.Progress
    ) -> Continuation:
        """small: compressed to the request's ranks, where that was done already."""
        prompt, where = request.prompt, model_key(request.recipe)
        try:
            dense = self._dense(request)
            small = small or self._compressed(request, dense, progress)
            own = self.objects.get(
                "live prompt", (*where, prompt), lambda: continued(dense, prompt, progress)
            )
            return compare(dense, small, prompt, own, progress)
        except Exception as error:
            return Continuation(error=_said(error))

    def _dense(self, request: LiveRequest) -> lrcore.LoadedModel:
        """The worker's own."""
        where = model_key(request.recipe)
        return self.objects.get("live", where, lambda: lrcore.load(*where))

    def _compressed(
        self, request: LiveRequest, dense: lrcore.LoadedModel, progress: lrcore.Progress
    ) -> lrcore.LoadedModel:
        return lrcore.compress(dense, request.recipe, request.factors, request.plan, progress)

    def _measure(
        self, request: LiveRequest, dense: lrcore.LoadedModel, progress: lrcore.Progress
    ) -> tuple[Figure, lrcore.LoadedModel | None]:
        recipe = request.recipe
        sample = lrcore.EvaluationSettings(recipe.data, request.windows, LENGTH)
        sample = sample.apart_from([recipe.data])
        before = self.objects.get(
            "live dense",
            (*model_key(recipe), recipe.data, request.windows),
            lambda: lrcore.evaluate(dense, sample, batch=2, progress=progress),
        )
        if request.checks:
            settled = lrcore.settle(dense, request.factors, recipe)
            self.objects.put("plan", plan_key(recipe, recipe), settled)
            if settled.ranks != request.plan.ranks:  # nobody is given these
                said = settled.account.planned.not_given(recipe.policy)
                return Figure(error=said, asked=request.windows), None
        small = self._compressed(request, dense, progress)
        after = lrcore.evaluate(small, sample, batch=2, progress=progress)
        own, dense_own = after.to_dict()["perplexity"], before.to_dict()["perplexity"]
        figure = Figure(own, dense_own, after.protocol, "", after.window_nll, request.windows)
        return figure, small


def _said(error: Exception) -> str:
    """One sentence for what went wrong."""
    if isinstance(error, lrcore.InputError):
        return lrcore.without_paths(str(error))
    if short := lrcore.shortage(error):
        return lrcore.without_paths(str(short))
    log.error("the live figure failed", exc_info=error)
    return f"{type(error).__name__}. The server's log has the details."
