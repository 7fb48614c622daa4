"""Kinds of evidence, and the cache files of their measurements."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...methods import find_method
from ...models.load import LoadedModel
from ...recipes.recipe import Recipe
from ...system.files import cache_folder, cache_key
from ...system.progress import Progress
from ..solve.allocate import allocation_key
from ..solve.factorize import Factorization

Measure = Callable[[LoadedModel, Factorization, Recipe, Progress], Any]
Tokens = Callable[[Factorization, Recipe], float]


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of evidence: a row of `EVIDENCE`.

    name: as in `Policy.needs`. about: what is measured, and at what cost.
    measure(model, factors, recipe, progress): returns the value; None if it comes with the factors.
    one_budget: whether the value is valid only for the recipe's budget. tokens(factors, recipe):
    number of tokens of forward passes through the complete network that take as long as the
    measurement; 0 if the value is cached. measure_for_ranks: like `measure`, without what only
    predictions need; None if the ranks need all of it.
    """

    name: str
    about: str
    measure: Measure | None = None
    one_budget: bool = False
    tokens: Tokens | None = None
    measure_for_ranks: Measure | None = None

    def budget(self, recipe: Recipe) -> str:
        """Return the key of the budget that the value is valid for; "" if it is valid for all."""
        return allocation_key(recipe) if self.one_budget else ""

    def key(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the key of the value in addition to the factors; empty if it comes with them."""
        if self.measure is None:
            return ()
        return (self.name, *filter(None, [self.budget(recipe)]))


# Options that were added later, with their defaults. They are left out of the cache key, so that
# measurements from before the options existed are still found.
ADDED_OPTIONS = {"stored": "pairs", "qk": "centered", "outputs": "none"}


def cache_file(folder: str, factors: Factorization, *parts: Any) -> Path:
    """Return the cache file, in the subfolder `folder`, of a measurement on these factors.

    parts: JSON-able values that the measurement depends on in addition to the calibration, the
    method with the options, and the slots.
    """
    slots = sorted((*slot, s.cost.full) for slot, s in factors.spectra.items())
    method, values = _shared(factors)
    if values.get("outputs") == ADDED_OPTIONS["outputs"]:
        del values["damping"]  # of the curvature, which is not read
    options = sorted(option for option in values.items() if option not in ADDED_OPTIONS.items())
    key = cache_key(factors.calibration.key, method, options, *parts, slots)
    return cache_folder() / folder / f"{key}.json"


def _shared(factors: Factorization) -> tuple[str, dict[str, Any]]:
    """Return the method and the options with which the factors are measured.

    They are those of `Method.same_factors_as`, if the method has one.
    """
    values = asdict(factors.options)
    name = find_method(factors.method).same_factors_as
    if not name:
        return factors.method, values
    defaults = asdict(find_method(name).options())
    return name, {option: values.get(option, default) for option, default in defaults.items()}
