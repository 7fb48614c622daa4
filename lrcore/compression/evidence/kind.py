"""What a row of the table of evidence is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...models.load import LoadedModel
from ...progress import Progress
from ...recipe import Recipe
from ..allocate import allocation_key
from ..factorise import Factorisation

Measure = Callable[[LoadedModel, Factorisation, Recipe, Progress], Any]
Tokens = Callable[[Factorisation, Recipe], float]


@dataclass(frozen=True)
class EvidenceKind:
    """One kind of evidence.

    name: what `Policy.needs` says. about: what is measured, and what it costs.
    measure(model, factors, recipe, progress): the value; None where it comes with the factors.
    one_budget: whether the value holds for the recipe's budget only. tokens(factors, recipe): how
    many measuring runs through the whole network, as many as take the time that it takes; 0 where
    the value is on disk.
    """

    name: str
    about: str
    measure: Measure | None = None
    one_budget: bool = False
    tokens: Tokens | None = None

    def budget(self, recipe: Recipe) -> str:
        """The key of the one budget that the value holds for, "" where it holds for all."""
        return allocation_key(recipe) if self.one_budget else ""

    def key(self, recipe: Recipe) -> tuple[str, ...]:
        """What the value depends on besides the factors; empty where it comes with them."""
        if self.measure is None:
            return ()
        return (self.name, *filter(None, [self.budget(recipe)]))
