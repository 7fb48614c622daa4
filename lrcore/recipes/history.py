"""History of a model: a frozen value per step, made by the function that applies the step.

`step_rules` defines the valid orders of steps, `provenance` the file format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar, get_args

from .recipe import Recipe
from .targets import DEFAULT, TARGETS, Target


@dataclass(frozen=True)
class SlotRank:
    """Rank and size of a slot.

    keep: parameters / dense parameters. kv_bytes: cached bytes per token. energy: retained energy,
    in [0, 1]. bits: of the rounded numbers; 0 if they are not rounded.
    """

    layer: int
    component: str
    rank: int
    full: int
    keep: float
    parameters: int
    dense_parameters: int
    kv_bytes: int
    dense_kv_bytes: int
    energy: float
    bits: int = 0


@dataclass(frozen=True)
class StandardFit:
    """Whether a plan or model fits a standard architecture of transformers.

    reasons: why it does not. ranks: {(layer, component): rank} that fit and are nearest to the
    parameters of the plan, or None.
    """

    qualifies: bool
    reasons: tuple[str, ...] = ()
    ranks: Mapping[tuple[int, str], int] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; ranks by "layer.component", as in Recipe.rank_overrides."""
        ranks = None
        if self.ranks is not None:
            ranks = {f"{layer}.{name}": rank for (layer, name), rank in self.ranks.items()}
        return {"qualifies": self.qualifies, "reasons": list(self.reasons), "ranks": ranks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StandardFit":
        """Return the value that `to_dict` wrote."""
        ranks = values.get("ranks")
        by_slot = ranks and {
            (int(slot.partition(".")[0]), slot.partition(".")[2]): rank
            for slot, rank in ranks.items()
        }
        return cls(values["qualifies"], tuple(values["reasons"]), by_slot)


DROPPED = -1  # in ExpertsPruned.pruned: not merged into an expert
QUANTIZED_NOT_STANDARD = StandardFit(False, ("its weights are quantized",))
SHARED_NOT_STANDARD = StandardFit(False, ("layers share bases of their matrices",))
SPARSE_NOT_STANDARD = StandardFit(False, ("its weights are stored with masks",))


class _Step:
    """Base class of steps.

    A field `stock` that is not None replaces the fit to a standard architecture that earlier steps
    determined, see `standard_fit_of`.
    """

    kind: ClassVar[str]

    @property
    def fixes_grids(self) -> bool:
        """Whether the step quantizes matrices on grids that a training keeps."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values: "kind" and all fields."""
        return {"kind": self.kind} | self.fields_dict()

    def fields_dict(self) -> dict[str, Any]:
        """Return JSON-able values of all fields."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """Return the step that `to_dict` wrote; unknown fields are ignored.

        Raises TypeError for a missing field.
        """
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(
            **{
                name: READERS.get(name, _unchanged)(values[name])
                for name in names
                if values.get(name) is not None
            }
        )


@dataclass(frozen=True)
class Compressed(_Step):
    """Compression by a recipe.

    ranks: an entry per slot. calibration: protocol of the windows, "mode" and "refit";
    "distillation_steps", if it was distilled, 0 if that was undone; "tokens_needed", if the windows
    have fewer; and "rare_experts", the number of experts with too few tokens. seconds: per stage.
    bounds: rows of `model_bounds.plan_bounds`, if computed.
    """

    kind: ClassVar[str] = "compressed"
    recipe: Recipe
    ranks: tuple[SlotRank, ...] = field(default=(), repr=False)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    stock: StandardFit | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    bounds: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def fixes_grids(self) -> bool:
        return any(row.bits for row in self.ranks)

    @property
    def about_calibration(self) -> str:
        """Sentences about too few calibration tokens, or ""."""
        tokens, needed = (self.calibration.get(name, 0) for name in ("tokens", "tokens_needed"))
        return " ".join(filter(None, [about_tokens(tokens, needed), self.about_experts]))

    @property
    def about_experts(self) -> str:
        """A sentence about experts with too few calibration tokens, or ""."""
        rare = self.calibration.get("rare_experts", 0)
        if not rare:
            return ""
        return (
            f"{rare} experts received fewer calibration tokens than the width of their matrices, "
            "so tokens of other experts were used as well. Use more samples."
        )


@dataclass(frozen=True)
class Healed(_Step):
    """Training of factors with the dense model as teacher: settings of `Healing` and results.

    protocol, test_protocol: of the training and test texts. perplexity_before, perplexity_after: on
    the test text, or None. first_loss, last_loss: L of CARE eq. 8. cross_entropy, divergence: the
    two parts at each step, nats/token. lora_rank, lora_alpha: None without adapters.
    """

    kind: ClassVar[str] = "healed"
    data: str
    samples: int
    seq_len: int
    steps: int
    batch: int
    lr: float
    beta: float
    temperature: float
    rotary_channel: int
    train: str
    test_samples: int
    seed: int
    teacher: str
    trained_parameters: int
    seconds: float
    tokens: int
    first_loss: float
    last_loss: float
    test: str | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    test_protocol: Mapping[str, Any] | None = None
    perplexity_before: float | None = None
    perplexity_after: float | None = None
    cross_entropy: tuple[float, ...] = field(default=(), repr=False)
    divergence: tuple[float, ...] = field(default=(), repr=False)
    lora_rank: int | None = None
    lora_alpha: int | None = None


@dataclass(frozen=True)
class Quantized(_Step):
    """Quantization of the decoder matrices to `bits` bits, in groups of `group` weights.

    method: the quantizer. calibration: protocol of the windows, empty without a text.
    """

    kind: ClassVar[str] = "quantized"
    method: str
    bits: int
    group: int
    stock: StandardFit = QUANTIZED_NOT_STANDARD
    calibration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixes_grids(self) -> bool:
        return True


@dataclass(frozen=True)
class Sparsified(_Step):
    """Sparse decoder matrices with masks.

    pattern: "2:4" (two of every four weights) or "unstructured". kept: fraction of nonzero weights.
    """

    kind: ClassVar[str] = "sparsified"
    criterion: str
    stock: StandardFit = SPARSE_NOT_STANDARD
    calibration: Mapping[str, Any] = field(default_factory=dict)
    pattern: str = "2:4"
    kept: float = 0.5


@dataclass(frozen=True)
class SharedBases(_Step):
    """Factored decoder matrices, most of them with a basis that `group` neighboring layers share.

    requested, removed: shares of the decoder parameters. calibration: protocol of the windows.
    """

    kind: ClassVar[str] = "shared"
    group: int
    requested: float
    removed: float
    calibration: Mapping[str, Any] = field(default_factory=dict)
    stock: StandardFit = SHARED_NOT_STANDARD


@dataclass(frozen=True)
class LayersDropped(_Step):
    """Removal of decoder layers.

    by: the criterion. gone: removed layers, counted from 0, in the order of removal. of: previous
    number of layers. calibration: protocol of the windows.
    """

    kind: ClassVar[str] = "layers_pruned"
    by: str
    gone: tuple[int, ...]
    of: int
    calibration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sliced(_Step):
    """A residual stream of `width` instead of `of` columns (SliceGPT).

    requested, removed: shares of the decoder parameters. residual_parameters: of the matrices that
    slicing adds to the residual path.
    """

    kind: ClassVar[str] = "sliced"
    width: int
    of: int
    rotations: str
    requested: float
    removed: float
    residual_parameters: int
    calibration: Mapping[str, Any] = field(default_factory=dict)
    stock: StandardFit | None = None


@dataclass(frozen=True)
class ExpertsPruned(_Step):
    """Removal of routed experts, the same number in all layers with experts.

    by: the criterion. pruned: (layer, expert, expert that it was merged into or `DROPPED`), counted
    from 0 in the previous numbering, in the order of removal. of: previous number of experts per
    layer. calibration: protocol of the windows.
    """

    kind: ClassVar[str] = "experts_pruned"
    by: str
    pruned: tuple[tuple[int, int, int], ...] = field(repr=False)
    of: int
    calibration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def experts(self) -> int:
        """Number of removed experts per layer."""
        return len(self.pruned) // len({layer for layer, _, _ in self.pruned})

    @property
    def merged(self) -> int:
        """Total number of merged experts."""
        return sum(into != DROPPED for _, _, into in self.pruned)


Step = (
    Compressed
    | ExpertsPruned
    | Healed
    | Quantized
    | SharedBases
    | LayersDropped
    | Sliced
    | Sparsified
)
STEPS: dict[str, type[Any]] = {step.kind: step for step in get_args(Step)}
S = TypeVar("S", bound=_Step)


def last_step(history: Sequence[Any], kind: type[S]) -> S | None:
    """Return the last step of a kind, or None."""
    return next((step for step in reversed(history) if isinstance(step, kind)), None)


def about_tokens(tokens: int, needed: int) -> str:
    """Return a sentence if a calibration has fewer tokens than a recipe needs, else ""."""
    if tokens >= needed:
        return ""
    return (
        f"The calibration has {tokens:,} tokens, but the widest matrix that is solved has "
        f"{needed:,} inputs. Use at least {needed:,} tokens (samples x seq_len)."
    )


def texts_seen(history: Sequence[Step]) -> set[str]:
    """Return the fingerprints of the calibration and training texts of a model."""
    protocols = (
        getattr(step, name, {}) for step in history for name in ("calibration", "protocol")
    )
    return {protocol["fingerprint"] for protocol in protocols if protocol.get("fingerprint")}


def standard_fit_of(history: Sequence[Step]) -> StandardFit | None:
    """Return the fit to a standard architecture after the last step that determines it, or None."""
    fits = (getattr(step, "stock", None) for step in reversed(history))
    return next((fit for fit in fits if fit is not None), None)


def target_of(history: Sequence[Step]) -> Target:
    """Return the target of the last compression."""
    names = (step.recipe.target for step in reversed(history) if isinstance(step, Compressed))
    return TARGETS[next(names, DEFAULT)]


def _slot_ranks(rows: Sequence[Mapping[str, Any]]) -> tuple[SlotRank, ...]:
    names = {f.name for f in fields(SlotRank)}
    return tuple(SlotRank(**{name: row[name] for name in names & row.keys()}) for row in rows)


def _unchanged(value: Any) -> Any:
    return value


# Conversions from JSON of the fields that are not plain JSON values, by field name.
READERS: dict[str, Callable[[Any], Any]] = {
    "recipe": Recipe.from_dict,
    "ranks": _slot_ranks,
    "stock": StandardFit.from_dict,
    "gone": tuple,
    "pruned": lambda rows: tuple(tuple(row) for row in rows),
    "bounds": tuple,
    "cross_entropy": tuple,
    "divergence": tuple,
}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
