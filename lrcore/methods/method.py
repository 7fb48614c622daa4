"""The row of a method in the table of methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..layers.layer import Layer
from ..layers.spectra import Form
from ..layers.statistics import CROSS, GRADIENTS, Moments, Need, activation_needs
from ..recipes import targets
from ..system.settings import NoOptions, options_of, read_options
from .expert_factors import EachExpert
from .factors import LayerFactors

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
COMPONENT_MATRICES = {"qk": ("q", "k"), "ov": ("v", "o"), "mlp": ("gate", "up", "down")}
COMPONENTS = tuple(COMPONENT_MATRICES)
JOINT_GATE_UP = "joint_gate_up"
CODED = (JOINT_GATE_UP, "up")  # slots that the option forms=codes turns into sparse codes
KEYS_AND_VALUES = frozenset({"k", "v"})
AUTO = ("auto", None)  # values of an option that the method chooses by itself
CASES = ("mha", "gqa", "rotary", "no_rotary", "biases", "gated_mlp", "plain_mlp", "sequential")


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    factor(layer, moments, options): returns the factors of a layer for all ranks. It is an
    `EachExpert` if the method also solves routed experts.
    summary: one sentence for a list of methods. notes: the implementation.
    components: the slots of a layer with the default options, in their first form if they have
    several. Matrices outside these slots stay dense.
    needs: the (tap, statistic) pairs that `factor` reads, or (matrix, statistic) for statistics of
    gradients. `factor` skips the pairs that a layer lacks.
    same_factors_as: the method that has the same factors on the moments of the dense model, so that
    measurements of these factors are shared.
    nests: whether the pair of rank r is the first part of the pair of each higher rank, with option
    stored=pairs if there is one. Then checkpoints can be nested.
    diagonal_blocks: the taps of whose second moment `factor` reads only the blocks of single heads,
    which few tokens determine. A method that reads only the diagonal needs statistic "square".
    shrinks_kv: whether at least one slot caches fewer numbers at a lower rank.
    holds: the matrices of each slot, with any options, that is not named after a single matrix.
    options: the frozen dataclass of the options, described by the metadata of its fields.
    extra_needs: additional needs of `factor` by (option, value), collected only with this value.
    refit: whether layers are refit by default, see lrcore/compression/solve/refit.py.
    unsupported: the entries of CASES that `factor` rejects with InputError. A test checks all rows.
    adds_biases: whether projections of the MLP without a bias get a bias.
    forms: the forms of the slots of parts that have several, see lrcore/layers/spectra.py.
    Policies that do not choose between forms use the first.
    copies: the number of matrices of the size of the widest second moment that `factor` has in
    memory at the same time, a measured lower bound
    (tests/compression/calibration/test_working_memory.py).
    low_rank_copies: the same number for a layer without components, of which all matrices become
    low-rank pairs; None for `copies`.
    auto_by_budget: the values of options that are "auto", by kind of budget, {budget: {option:
    value}}.
    auto_for_first_forms: the values of options that are "auto" if only the first form of each part
    is solved and no budget determines them.
    """

    name: str
    paper: str
    summary: str
    notes: str
    factor: Callable[[Layer, Moments, Any], LayerFactors]
    components: tuple[str, ...]
    needs: frozenset[Need]
    shrinks_kv: bool
    holds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: type = NoOptions
    extra_needs: Mapping[tuple[str, Any], frozenset[Need]] = field(default_factory=dict)
    refit: bool = False
    unsupported: frozenset[str] = frozenset()
    adds_biases: bool = False
    forms: Mapping[str, Form] = field(default_factory=dict)
    auto_by_budget: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    auto_for_first_forms: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 1
    low_rank_copies: int | None = None
    diagonal_blocks: frozenset[str] = frozenset()
    same_factors_as: str = ""
    nests: bool = False

    @property
    def covers(self) -> frozenset[str]:
        """Return the names of the matrices of all components; a layer may lack some of them, such
        as the gate.
        """
        return frozenset(matrix for slot in self.components for matrix in self.matrices_of(slot))

    @property
    def solves_all_matrices(self) -> bool:
        """Return whether the method also solves the matrices of latents, of mixers, and of layers
        that were found by structure, which have other names than those that it covers.
        """
        return "o" in (*self.components, *self.forms)

    @property
    def solves_experts(self) -> bool:
        """Return whether the method compresses the routed experts of a layer."""
        return isinstance(self.factor, EachExpert)

    def matrices_of(self, slot: str) -> tuple[str, ...]:
        """Return the names of the matrices in a slot; a layer may lack some of them."""
        return self.holds.get(slot, (slot,))

    def structure(self, slot: str, options: Any) -> str:
        """Return the structure of a slot below full rank, an entry of `targets.STRUCTURES`."""
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
        in_codes = getattr(options, "forms", "") == "codes" and slot in CODED
        if in_codes or getattr(options, "sparse", 0) or getattr(options, "atoms", 0):
            return targets.SPARSE
        return targets.QUANTIZED if getattr(options, "bits", 0) else targets.PAIRS

    def structures(self, options: Any) -> set[str]:
        """Return the structures of all slots and forms below full rank."""
        return {self.structure(slot, options) for slot in (*self.components, *self.forms)}

    def default_structures(self) -> set[str]:
        """Return the structures of all slots below full rank with the default options."""
        return {self.structure(name, self.choose({})) for name in self.components}

    def budget(self, kind: str) -> str:
        """Return the kind of budget that a ratio refers to.

        "auto" stands for "kv" if the method factorizes only keys and values, and for "params"
        otherwise.
        """
        if kind != "auto":
            return kind
        return "kv" if self.covers <= KEYS_AND_VALUES else "params"

    def choose(self, options: Mapping[str, Any]) -> Any:
        """Return the options as a value of their dataclass.

        Raises InputError for an unknown name or a value out of range.
        """
        return read_options(f"method {self.name}", self.options, options)

    def resolve_auto(self, options: Mapping[str, Any], budget: str) -> dict[str, Any]:
        """Return the options of a recipe with the values of "auto" under its budget."""
        return _where_auto(options, self.auto_by_budget.get(self.budget(budget), {}))

    def with_first_forms(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with which only the first form of each part is solved.

        Options that are set explicitly keep their values.
        """
        return _where_auto(options, self.auto_for_first_forms)

    def reads(self, options: Any) -> frozenset[Need]:
        """Return the statistics of activations that `factor` reads with these options."""
        return activation_needs(self._all(options))

    @property
    def is_anchored(self) -> bool:
        """Return whether `factor` reads cross moments with the dense model.

        If layers are compressed in sequence, `factor` is then called with the moments of a single
        tap at a time and solves the matrices that read this tap.
        """
        return any(statistic == CROSS for _, statistic in self.needs)

    def gradients(self, options: Any) -> frozenset[str]:
        """Return the statistics of gradients that `factor` reads with these options."""
        return frozenset(name for _, name in self._all(options) if name in GRADIENTS)

    def gradient_user(self, options: Any) -> str:
        """Return a description of the part of the method that reads gradients, such as
        "weights=fisher of svd"; "" if no part does.
        """
        if not GRADIENTS.isdisjoint(name for _, name in self.needs):
            return f"method {self.name}"
        settings = [
            f"{name}={value}"
            for (name, value), needs in self._extra(options).items()
            if not GRADIENTS.isdisjoint(statistic for _, statistic in needs)
        ]
        return f"{' and '.join(settings)} of {self.name}" if settings else ""

    def _extra(self, options: Any) -> dict[tuple[str, Any], frozenset[Need]]:
        """Return the extra needs of the options, by option name and value."""
        return {
            (name, value): needs
            for (name, value), needs in self.extra_needs.items()
            if getattr(options, name) == value
        }

    def _all(self, options: Any) -> frozenset[Need]:
        return self.needs.union(*self._extra(options).values())

    def describe(self) -> dict[str, Any]:
        """Return the row as plain values, for `methods --json` and the page."""
        supports = {case: case not in self.unsupported for case in CASES} | {
            "kv_budget": self.shrinks_kv
        }
        return {
            "name": self.name,
            "paper": self.paper,
            "summary": self.summary,
            "components": list(self.components),
            "supports": supports,
            "notes": self.notes,
            "options": [option.describe() for option in options_of(self.options)],
            "refit": self.refit,
        }


def _where_auto(options: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with `values` in place of "auto"."""
    resolved = {name: value for name, value in values.items() if options.get(name) in AUTO}
    return {**options, **resolved}
