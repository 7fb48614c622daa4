"""What a row of the table of methods is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import targets
from ..layer import Layer
from ..options import NoOptions, options_of, read_options
from ..spectra import Form
from ..statistics import CROSS, GRADIENTS, Moments, Need, of_activations
from .experts import EachExpert
from .factors import LayerFactors

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
COMPONENT_MATRICES = {"qk": ("q", "k"), "ov": ("v", "o"), "mlp": ("gate", "up", "down")}
COMPONENTS = tuple(COMPONENT_MATRICES)
KEYS_AND_VALUES = frozenset({"k", "v"})
AUTO = ("auto", None)  # an option that is left open
CASES = ("mha", "gqa", "rotary", "no_rotary", "biases", "gated_mlp", "plain_mlp", "sequential")


@dataclass(frozen=True)
class Method:
    """A row of the table.

    factor(layer, moments, options): the factors of one layer for all ranks; an `EachExpert` where
    it solves routed experts as well.
    components: the slots of a layer with the default options, in their first form where they have
    several. They need not cover the layer: the rest stays dense.
    needs: the (tap, statistic) pairs that `factor` reads, or (matrix, statistic) where the
    statistic is one of gradients; of those that a layer lacks it reads none.
    shrinks_kv: whether some slot caches less at a lower rank.
    holds: the matrices of every slot, with any options, that is not named after a single matrix.
    options: the frozen dataclass of its options, described by the metadata of its fields.
    extra_needs: what `factor` reads besides with an (option, value); collected only then.
    refit: whether layers are refit unless the recipe says otherwise, see
    lrcore/compression/refit.py.
    lacks: those of CASES that `factor` refuses with InputError; a test checks every row.
    adds_biases: whether projections of the MLP that have no bias get one.
    forms: of the slots of a part that has several, see lrcore/alternatives.py. The factors of a
    layer have the form first that policies take which do not choose between them.
    copies: at least how many matrices as large as the widest second moment that it reads `factor`
    has at once, measured (tests/test_working_memory.py).
    under: what options that are "auto" mean under a kind of budget, {budget: {option: value}}.
    first: what they mean, where no budget says, to solve the first form of every part alone.
    """

    name: str
    paper: str
    notes: str
    factor: Callable[[Layer, Moments, Any], LayerFactors]
    components: tuple[str, ...]
    needs: frozenset[Need]
    shrinks_kv: bool
    holds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: type = NoOptions
    extra_needs: Mapping[tuple[str, Any], frozenset[Need]] = field(default_factory=dict)
    refit: bool = False
    lacks: frozenset[str] = frozenset()
    adds_biases: bool = False
    forms: Mapping[str, Form] = field(default_factory=dict)
    under: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 1

    @property
    def covers(self) -> frozenset[str]:
        """The matrices that its components hold; a layer may lack some, such as the gate."""
        return frozenset(one for name in self.components for one in self.matrices_of(name))

    @property
    def experts(self) -> bool:
        """Whether it compresses the routed experts of a layer that has them."""
        return isinstance(self.factor, EachExpert)

    def matrices_of(self, slot: str) -> tuple[str, ...]:
        """The matrices whose weights a slot of this method holds; a layer may lack some."""
        return self.holds.get(slot, (slot,))

    def structure(self, slot: str, options: Any) -> str:
        """What a slot is below full rank, one of `targets.STRUCTURES`."""
        by_name = {
            "latent_k": targets.BIASED_LATENTS,
            "latent_v": targets.BIASED_LATENTS,
            "qk": targets.NARROWER_HEADS,
            "ov": targets.NARROWER_HEADS,
            "mlp": targets.BIASED_MLPS if self.adds_biases else targets.NARROWER_MLPS,
            "heads": targets.FEWER_HEADS,
        }
        if slot in by_name:
            return by_name[slot]
        if self.covers <= KEYS_AND_VALUES:
            return targets.LATENT_VALUES if slot == "v" else targets.LATENT_KEYS
        if getattr(options, "sparse", 0):
            return targets.SPARSE
        return targets.QUANTISED if getattr(options, "bits", 0) else targets.PAIRS

    def own_structures(self) -> set[str]:
        """What its slots are below full rank with its own options, of `targets.STRUCTURES`."""
        return {self.structure(name, self.choose({})) for name in self.components}

    def budget(self, kind: str) -> str:
        """What a ratio counts: `kind`, and for "auto" what this method shrinks: "kv" where it
        factors keys and values only, else "params".
        """
        if kind != "auto":
            return kind
        return "kv" if self.covers <= KEYS_AND_VALUES else "params"

    def choose(self, given: Mapping[str, Any]) -> Any:
        """The options as a value of their dataclass. Raises InputError for an unknown name or a
        value out of range.
        """
        return read_options(f"method {self.name}", self.options, given)

    def given(self, options: Mapping[str, Any], budget: str) -> dict[str, Any]:
        """The options of a recipe with what "auto" means under its budget."""
        return _where_auto(options, self.under.get(self.budget(budget), {}))

    def with_first_forms(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options `given`, such that the first form of every part alone is solved, as far as
        they leave it open.
        """
        return _where_auto(given, self.first)

    def reads(self, options: Any) -> frozenset[Need]:
        """What `factor` reads of activations with these options."""
        return of_activations(self._all(options))

    @property
    def anchored(self) -> bool:
        """Whether `factor` reads cross moments with the dense model, where layers are compressed in
        sequence: then it is given the moments of one tap at a time, and solves what reads it.
        """
        return any(statistic == CROSS for _, statistic in self.needs)

    def gradients(self, options: Any) -> frozenset[str]:
        """The statistics of gradients that `factor` reads with these options."""
        return frozenset(name for _, name in self._all(options) if name in GRADIENTS)

    def gradients_read_by(self, options: Any) -> str:
        """What of it reads those with these options, such as "weights=fisher of svd"; "" where
        nothing does.
        """
        if not GRADIENTS.isdisjoint(name for _, name in self.needs):
            return f"method {self.name}"
        own = [
            f"{name}={value}"
            for (name, value), needs in self._extra(options).items()
            if not GRADIENTS.isdisjoint(one for _, one in needs)
        ]
        return f"{' and '.join(own)} of {self.name}" if own else ""

    def _extra(self, options: Any) -> dict[tuple[str, Any], frozenset[Need]]:
        """What options add to its needs, by their names and values."""
        every = self.extra_needs.items()
        return {own: needs for own, needs in every if getattr(options, own[0]) == own[1]}

    def _all(self, options: Any) -> frozenset[Need]:
        return self.needs.union(*self._extra(options).values())

    def describe(self) -> dict[str, Any]:
        """The row as plain values, for `methods --json` and the page."""
        supports = {case: case not in self.lacks for case in CASES} | {"kv_budget": self.shrinks_kv}
        return {
            "name": self.name,
            "paper": self.paper,
            "components": list(self.components),
            "supports": supports,
            "notes": self.notes,
            "options": [option.describe() for option in options_of(self.options)],
            "refit": self.refit,
        }


def _where_auto(options: Mapping[str, Any], meant: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what is meant in the place of those that are "auto"."""
    open_ = {name: value for name, value in meant.items() if options.get(name) in AUTO}
    return {**options, **open_}
