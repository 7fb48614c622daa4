"""The actual perplexity of the plan on show: compressed in memory and measured on a small held-out
sample, in the background.

One worker of its own, outside the queue of jobs. Each browser has one wish, its newest; work on an
older one stops at the next layer or batch. The worker reads a dense model of its own: a job may
exchange the layers of the shared one for a moment while it streams through it.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import lrcore

from .shelf import Shelf

log = logging.getLogger("workbench.live")

WINDOWS, LENGTH = 8, 128  # of the sample: about a thousand tokens
# seconds without a new wish before work begins: a slider that moves has the processor for itself
STILL = 0.25
# parameters x tokens run through them that are worth measuring unasked; a few seconds on two cores
MOST = 2e11
ACCELERATED = 100  # times as much where the model is not on the CPU
KEPT = 256  # figures remembered


@dataclass(frozen=True)
class Figure:
    """perplexity of the compressed and of the dense model on the same windows; protocol says which.

    error: why there is none.
    """

    perplexity: float | None = None
    dense: float | None = None
    protocol: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True)
class Wish:
    """What a browser shows now.

    key: of all that its figure depends on; it marks the place on the page where the figure belongs.
    """

    key: str
    browser: Hashable
    factors: Any
    recipe: lrcore.Recipe
    plan: Any
    when: float = field(default_factory=time.monotonic)


def key_of(factors: Any, recipe: lrcore.Recipe, plan: Any) -> str:
    ranks = sorted([*slot, rank] for slot, rank in plan.ranks.items())
    asked = [
        recipe.model,
        recipe.revision,
        recipe.dtype,
        recipe.device,
        recipe.data,
        recipe.calibration,
        recipe.refit,
    ]
    parts = [factors.calibration.key, factors.method, sorted(factors.options.items()), asked, ranks]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def tokens_run(recipe: lrcore.Recipe, refits: bool) -> int:
    """Tokens that pass through the model for one figure; a sequential or refitted compression
    runs the calibration windows as well.
    """
    streams = 2 * refits + (recipe.calibration == "sequential" and not refits)
    return WINDOWS * LENGTH + streams * recipe.samples * recipe.seq_len


def affordable(factors: Any, recipe: lrcore.Recipe) -> bool:
    """Whether the model is small enough to be measured unasked, for the sample and for what its
    compression runs.
    """
    own = any(row["refit"] for row in lrcore.methods() if row["name"] == recipe.method)
    refits = recipe.refit == "on" or (recipe.refit == "auto" and own)
    most = MOST * (1 if str(factors.calibration.device) == "cpu" else ACCELERATED)
    return factors.shape.parameters * tokens_run(recipe, refits) <= most


class Live:
    """`peek` gives a figure that is known; `newest` is the key that a browser asked for last."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._known: OrderedDict[str, Figure] = OrderedDict()
        self._found = 0
        self._wishes: OrderedDict[Hashable, Wish] = OrderedDict()
        self._newest: OrderedDict[Hashable, str] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="live", daemon=True).start()

    def ask(self, wish: Wish) -> None:
        """Wish for a figure, instead of what this browser wished before."""
        with self._changed:
            self._newest[wish.browser] = wish.key
            self._newest.move_to_end(wish.browser)
            while len(self._newest) > KEPT:
                self._newest.popitem(last=False)
            self._wishes.pop(wish.browser, None)
            if wish.key not in self._known:
                self._wishes[wish.browser] = wish
            self._changed.notify()

    def forget(self, browser: Hashable) -> None:
        """A browser wishes for nothing any more."""
        with self._changed:
            self._newest.pop(browser, None)
            self._wishes.pop(browser, None)

    def wait(self, wish: Wish, stop: threading.Event) -> None:
        """Until the figure of a wish is known, or somebody stops."""
        self.ask(wish)
        while self.peek(wish.key) is None and not stop.wait(0.05):
            pass
        self.forget(wish.browser)

    def count(self) -> int:
        """How many figures were found so far: another number, and there may be one more to show."""
        return self._found

    def peek(self, key: str | None) -> Figure | None:
        with self._changed:
            return self._known.get(key)

    def newest(self, browser: Hashable) -> str | None:
        return self._newest.get(browser)

    def _run(self) -> None:
        with suppress(
            AttributeError, OSError
        ):  # on Linux a thread has a priority of its own: what redraws the page comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            wish = self._next()
            try:
                figure = self._measure(wish)
            except lrcore.Cancelled:
                continue
            except lrcore.InputError as error:
                figure = Figure(error=str(error))
            except Exception as error:
                log.exception("the live figure failed")
                figure = Figure(error=f"{type(error).__name__}. The server's log has the details.")
            with self._changed:
                self._known[wish.key] = figure
                self._found += 1
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
                for browser in [
                    browser for browser, other in self._wishes.items() if other.key == wish.key
                ]:
                    del self._wishes[browser]

    def _next(self) -> Wish:
        """The wish that has waited longest of those that have been still for a moment."""
        with self._changed:
            while True:
                oldest = min(self._wishes.values(), key=lambda wish: wish.when, default=None)
                wait = None if oldest is None else oldest.when + STILL - time.monotonic()
                if wait is not None and wait <= 0:
                    return oldest
                self._changed.wait(wait)

    def _measure(self, wish: Wish) -> Figure:
        def go_on(stage: str, done: int, total: int) -> None:
            if all(other.key != wish.key for other in list(self._wishes.values())):
                raise lrcore.Cancelled(stage)

        recipe = wish.recipe
        where = (recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.offload)
        dense = self.shelf.get("live", where, lambda: lrcore.load(*where))
        sample = {"data": recipe.data, "samples": WINDOWS, "seq_len": LENGTH, "batch": 2}
        before = self.shelf.get(
            "live dense", (*where, recipe.data), lambda: lrcore.evaluate(dense, **sample)
        )
        small = lrcore.compress(dense, recipe, wish.factors, wish.plan, go_on)
        found = lrcore.evaluate(small, **sample, progress=go_on).to_dict()
        return Figure(found["perplexity"], before.to_dict()["perplexity"], found["protocol"])
