"""The models of a sweep's chains: a step that several cells begin with is taken once."""

from collections.abc import Callable, Sequence

from ..compression.chain import Around, Chain, chain_key
from ..compression.factorise import Factorisation
from ..models.load import LoadedModel
from ..progress import Progress
from ..recipe import Recipe

Factors = Callable[[LoadedModel, Recipe, Progress], Factorisation]


class ChainModels:
    """Models made step by step of a dense one. One that a later cell goes on from stays in memory
    until that cell is reached.

    chains: of all cells, in their order; factors: what a compression takes.
    """

    def __init__(self, dense: LoadedModel, chains: Sequence[Chain], factors: Factors) -> None:
        self.dense, self._factors = dense, factors
        self._ahead = [{chain_key(chain[:n]) for n in range(1, len(chain) + 1)} for chain in chains]
        self._after = 0  # the number of the next cell
        self._kept: dict[str, LoadedModel] = {}

    def model(self, chain: Chain, progress: Progress) -> LoadedModel:
        """The model of a chain; () stands for the dense one.

        Raises InputError for a step that may not follow the ones before it.
        """
        if not chain:
            return self.dense
        if (kept := self._kept.get(chain_key(chain))) is not None:
            return kept

        def factors(model: LoadedModel, recipe: Recipe) -> Factorisation:
            return self._factors(model, recipe, progress)

        def earlier(fingerprint: str) -> LoadedModel | None:
            models = (self.model(chain[:n], progress) for n in range(len(chain)))
            return next((one for one in models if one.fingerprint == fingerprint), None)

        before = self.model(chain[:-1], progress)
        made = chain[-1].apply(before, Around(progress, factors, earlier))
        self.keep(chain, made)
        return made

    def keep(self, chain: Chain, model: LoadedModel) -> None:
        """Hold the model of a chain where a later cell begins with it."""
        key = chain_key(chain)
        if any(key in ahead for ahead in self._ahead[self._after :]):
            self._kept[key] = model

    def reached(self, number: int) -> None:
        """The cell of that number is at hand: what no cell after it begins with is let go of, once
        that cell is made.
        """
        begun = set().union(*self._ahead[number:])
        self._kept = {key: model for key, model in self._kept.items() if key in begun}
        self._after = number + 1
