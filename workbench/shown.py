"""What each browser was last shown, the plan that it has pinned, its prompt and its context."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

import lrcore

from .keys import calibration_key, unmeasured

KEPT = 256  # browsers
CONTEXTS = (1024, 4096, 8192, 32768, 131072)  # tokens in the cache whose size is told
CONTEXT = CONTEXTS[1]


class Shown:
    """Where a policy has to measure something first, the ranks of the one before stay on show."""

    def __init__(self) -> None:
        self._by_browser: OrderedDict[Hashable, tuple[str, Mapping[str, Any]]] = OrderedDict()
        self._pinned: OrderedDict[Hashable, lrcore.Recipe] = OrderedDict()
        self._prompts: OrderedDict[Hashable, str] = OrderedDict()
        self._contexts: OrderedDict[Hashable, int] = OrderedDict()

    def note(self, browser: Hashable, recipe: lrcore.Recipe) -> None:
        """A browser is shown the ranks of this recipe."""
        self._by_browser[browser] = (recipe.policy, recipe.policy_options)
        self._by_browser.move_to_end(browser)
        while len(self._by_browser) > KEPT:
            self._by_browser.popitem(last=False)

    def before(self, browser: Hashable, recipe: lrcore.Recipe) -> lrcore.Recipe:
        """The recipe by the policy that the browser was shown last."""
        known = self._by_browser.get(browser)
        if known is None:
            return unmeasured(recipe)
        policy, options = known
        return recipe.with_(policy=policy, policy_options=options)

    def pin(self, browser: Hashable, recipe: lrcore.Recipe | None) -> None:
        """A browser holds what it is shown against the plan of this recipe; None: of none."""
        self._pinned.pop(browser, None)
        if recipe is not None:
            self._pinned[browser] = recipe
        while len(self._pinned) > KEPT:
            self._pinned.popitem(last=False)

    def pinned(self, browser: Hashable) -> lrcore.Recipe | None:
        return self._pinned.get(browser)

    def pinned_beside(self, browser: Hashable, recipe: lrcore.Recipe) -> lrcore.Recipe | None:
        """The recipe of the pinned plan where it is of the same model and text as `recipe`."""
        pinned = self.pinned(browser)
        if pinned is None or calibration_key(pinned) != calibration_key(recipe):
            return None
        return pinned

    def ask(self, browser: Hashable, prompt: str) -> None:
        """A browser wants this prompt continued by what it is shown; "": nothing."""
        self._prompts.pop(browser, None)
        if prompt:
            self._prompts[browser] = prompt
        while len(self._prompts) > KEPT:
            self._prompts.popitem(last=False)

    def prompt(self, browser: Hashable) -> str:
        return self._prompts.get(browser, "")

    def at_context(self, browser: Hashable, tokens: int) -> None:
        """A browser wants to know how large a cache of so many tokens is."""
        self._contexts.pop(browser, None)
        self._contexts[browser] = tokens
        while len(self._contexts) > KEPT:
            self._contexts.popitem(last=False)

    def context(self, browser: Hashable) -> int:
        return self._contexts.get(browser, CONTEXT)
