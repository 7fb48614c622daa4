"""State of each browser: displayed policy, pinned plan, prompt, context, compared model, undo."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import lrcore

from .keys import calibration_key, without_measurements
from .plan_history import PlanHistory

MAX_BROWSERS = 256
CONTEXTS = (1024, 4096, 8192, 32768, 131072)  # choices for the size of the cache, in tokens
CONTEXT = CONTEXTS[1]


class BrowserState:
    """State by browser. The state of the browsers that changed least recently is dropped."""

    def __init__(self) -> None:
        self._policies: OrderedDict[Hashable, tuple[str, Mapping[str, Any]]] = OrderedDict()
        self._pinned: OrderedDict[Hashable, lrcore.Recipe] = OrderedDict()
        self._prompts: OrderedDict[Hashable, str] = OrderedDict()
        self._contexts: OrderedDict[Hashable, int] = OrderedDict()
        self._histories: OrderedDict[Hashable, PlanHistory] = OrderedDict()
        self._compared_models: OrderedDict[Hashable, str] = OrderedDict()
        self._history_lock = threading.Lock()

    def set_displayed(self, browser: Hashable, recipe: lrcore.Recipe) -> None:
        """Record that a browser displays the plan of a recipe."""
        _put(self._policies, browser, (recipe.policy, recipe.policy_options))

    def previous_recipe(self, browser: Hashable, recipe: lrcore.Recipe) -> lrcore.Recipe:
        """Return the recipe with the policy that the browser displayed last."""
        previous = self._policies.get(browser)
        if previous is None:
            return without_measurements(recipe)
        policy, options = previous
        return recipe.with_(policy=policy, policy_options=options)

    def pin(self, browser: Hashable, recipe: lrcore.Recipe | None) -> None:
        """Pin the plan of a recipe, with which other plans are compared. None removes the pin."""
        _put(self._pinned, browser, recipe)

    def pinned_recipe(self, browser: Hashable) -> lrcore.Recipe | None:
        return self._pinned.get(browser)

    def comparable_pin(self, browser: Hashable, recipe: lrcore.Recipe) -> lrcore.Recipe | None:
        """Return the pinned recipe if its model and calibration text are those of `recipe`."""
        pinned = self.pinned_recipe(browser)
        if pinned is None or calibration_key(pinned) != calibration_key(recipe):
            return None
        return pinned

    def set_prompt(self, browser: Hashable, prompt: str) -> None:
        """Set the prompt that the displayed plan continues; "" for none."""
        _put(self._prompts, browser, prompt or None)

    def prompt(self, browser: Hashable) -> str:
        return self._prompts.get(browser, "")

    def set_context(self, browser: Hashable, tokens: int) -> None:
        """Set the number of cached tokens for the displayed size of the cache."""
        _put(self._contexts, browser, tokens)

    def context(self, browser: Hashable) -> int:
        return self._contexts.get(browser, CONTEXT)

    def compare_model(self, browser: Hashable, model: str) -> bool:
        """Record the model whose runs are listed; return whether another one was listed before."""
        previous = self._compared_models.get(browser, model)
        _put(self._compared_models, browser, model)
        return previous != model

    def change_history(
        self, browser: Hashable, change: Callable[[PlanHistory], PlanHistory]
    ) -> PlanHistory:
        """Replace the history of the settings by `change` of it, and return it.

        The history of a new page begins with the default recipe.
        """
        with self._history_lock:
            history = change(self._histories.get(browser) or PlanHistory(lrcore.Recipe()))
            _put(self._histories, browser, history)
        return history


def _put(values: OrderedDict[Hashable, Any], browser: Hashable, value: Any) -> None:
    values.pop(browser, None)
    if value is not None:
        values[browser] = value
    while len(values) > MAX_BROWSERS:
        values.popitem(last=False)
