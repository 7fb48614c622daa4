"""What happened to a model, step by step, as values: what each step says of itself.

No tensors here, and no work: the functions that take a step make its value. `may_follow` says which
step may follow which, `provenance` how all of it is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from operator import itemgetter
from typing import Any, ClassVar, TypeVar, get_args

from .recipe import Recipe
from .targets import DEFAULT, TARGETS, Target


@dataclass(frozen=True)
class SlotRank:
    """The rank that a plan gives one slot, and what the slot then weighs.

    keep: share of its dense parameters. kv_bytes: cached bytes per token. energy: share of the loss
    avoided, in [0, 1].
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


@dataclass(frozen=True)
class StockFit:
    """Whether a plan or model fits an architecture of transformers, why not, and the ranks nearest
    to the plan's parameters that do, {(layer, component): rank}; None where none do.
    """

    qualifies: bool
    reasons: tuple[str, ...] = ()
    ranks: Mapping[tuple[int, str], int] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; the ranks as a recipe's overrides name them, "layer.component"."""
        ranks = None
        if self.ranks is not None:
            ranks = {f"{layer}.{name}": rank for (layer, name), rank in self.ranks.items()}
        return {"qualifies": self.qualifies, "reasons": list(self.reasons), "ranks": ranks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StockFit":
        """What `to_dict` gave."""
        ranks = values.get("ranks")
        named = ranks and {
            (int(slot.partition(".")[0]), slot.partition(".")[2]): rank
            for slot, rank in ranks.items()
        }
        return cls(values["qualifies"], tuple(values["reasons"]), named)


DROPPED = -1  # in the place of the expert that one was merged into
QUANTISED_STOCK = StockFit(False, ("its weights are quantised",))
SHARED_STOCK = StockFit(False, ("layers share bases of their matrices",))
SPARSE_STOCK = StockFit(False, ("its weights are stored with masks",))


class _Step:
    """What the steps share. `stock`, where a step has one, replaces that of the steps before."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: "kind" and every field."""
        return {"kind": self.kind} | self.fields_dict()

    def fields_dict(self) -> dict[str, Any]:
        """JSON-able: every field by name."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """What `to_dict` gave; what this version does not know is left out.

        Raises TypeError where a field is missing.
        """
        named = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        return cls(
            **{
                name: READERS.get(name, _same)(values[name])
                for name in named
                if values.get(name) is not None
            }
        )


@dataclass(frozen=True)
class Compressed(_Step):
    """Ranks put in by a recipe.

    ranks: one entry per slot. calibration: the protocol of the windows, the mode, and whether it
    was refit; rare_experts in it: how many had too few tokens. seconds: per stage. bounds: rows of
    `lrcore.bounds`, where they were computed.
    """

    kind: ClassVar[str] = "compressed"
    recipe: Recipe
    ranks: tuple[SlotRank, ...] = field(default=(), repr=False)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    stock: StockFit | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    bounds: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def about_experts(self) -> str:
        """One sentence where other tokens stood in for those of rare experts, else ""."""
        rare = self.calibration.get("rare_experts", 0)
        if not rare:
            return ""
        return (
            f"{rare} experts saw fewer tokens of the calibration text than their matrices are "
            "wide, so other tokens stand in for those that are missing: give more samples."
        )


@dataclass(frozen=True)
class Healed(_Step):
    """Factors trained against the dense model: the settings of `Healing`, and what came of it.

    protocol, test_protocol: of the text trained on and of that scored, whose perplexity before and
    after is None where nothing was scored. first_loss, last_loss: L of CARE eq. 8; cross_entropy
    and divergence: its two parts at every step, in nats per token. lora_rank, lora_alpha: None
    where no adapters were trained.
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
class Quantised(_Step):
    """Matrices of the decoder layers stored with `bits` bits each, in groups of `group` numbers.

    calibration: the protocol of the windows, empty where no text was read.
    """

    kind: ClassVar[str] = "quantised"
    method: str
    bits: int
    group: int
    stock: StockFit = QUANTISED_STOCK
    calibration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sparsified(_Step):
    """Two of every four weights of the decoder layers kept, or a share `kept` of them where the
    pattern is "unstructured", by a criterion, with a mask.
    """

    kind: ClassVar[str] = "sparsified"
    criterion: str
    stock: StockFit = SPARSE_STOCK
    calibration: Mapping[str, Any] = field(default_factory=dict)
    pattern: str = "2:4"
    kept: float = 0.5


@dataclass(frozen=True)
class SharedBases(_Step):
    """Every matrix of the decoder layers factored, most of them with a basis that `group`
    neighbouring layers share.

    requested, removed: shares of the decoder parameters. calibration: the protocol of the windows.
    """

    kind: ClassVar[str] = "shared"
    group: int
    requested: float
    removed: float
    calibration: Mapping[str, Any] = field(default_factory=dict)
    stock: StockFit = SHARED_STOCK


@dataclass(frozen=True)
class Shortened(_Step):
    """Decoder layers dropped.

    gone: counted from 0, in the order in which they went; of: how many there were; by: what chose
    them. calibration: the protocol of the windows on which they were chosen.
    """

    kind: ClassVar[str] = "shortened"
    by: str
    gone: tuple[int, ...]
    of: int
    calibration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sliced(_Step):
    """The residual stream narrowed from `of` to `width` columns (SliceGPT).

    requested, removed: shares of the decoder parameters. residual_parameters: numbers in the
    matrices that slicing put into the residual path.
    """

    kind: ClassVar[str] = "sliced"
    width: int
    of: int
    rotations: str
    requested: float
    removed: float
    residual_parameters: int
    calibration: Mapping[str, Any] = field(default_factory=dict)
    stock: StockFit | None = None


@dataclass(frozen=True)
class ExpertsPruned(_Step):
    """Routed experts that went, equally many in every layer that has some.

    pruned: layer, expert and the expert that it was merged into, or `DROPPED`, counted from 0 as
    there were, in the order in which they went; of: how many experts a layer had; by: what chose
    them. calibration: the protocol of the windows on which they were chosen.
    """

    kind: ClassVar[str] = "experts_pruned"
    by: str
    pruned: tuple[tuple[int, int, int], ...] = field(repr=False)
    of: int
    calibration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def experts(self) -> int:
        """How many every layer has lost."""
        return len(self.pruned) // len({layer for layer, _, _ in self.pruned})

    @property
    def merged(self) -> int:
        """How many in all were merged into another."""
        return sum(into != DROPPED for _, _, into in self.pruned)


Step = (
    Compressed | ExpertsPruned | Healed | Quantised | SharedBases | Shortened | Sliced | Sparsified
)
STEPS: dict[str, type[Any]] = {one.kind: one for one in get_args(Step)}
S = TypeVar("S", bound=_Step)


def last_step(history: Sequence[Any], kind: type[S]) -> S | None:
    """The last step of a kind; None where there is none."""
    return next((step for step in reversed(history) if isinstance(step, kind)), None)


def texts_seen(history: Sequence[Step]) -> set[str]:
    """Fingerprints of the texts that a model was calibrated or trained on."""
    protocols = (
        getattr(step, name, {}) for step in history for name in ("calibration", "protocol")
    )
    return {one["fingerprint"] for one in protocols if one.get("fingerprint")}


def stock_of(history: Sequence[Step]) -> StockFit | None:
    """Whether the model fits an architecture of transformers, as the last step that knows says."""
    fits = (getattr(step, "stock", None) for step in reversed(history))
    return next((fit for fit in fits if fit is not None), None)


def target_of(history: Sequence[Step]) -> Target:
    """What the model was compressed for, as the last compression says."""
    names = (step.recipe.target for step in reversed(history) if isinstance(step, Compressed))
    return TARGETS[next(names, DEFAULT)]


def _slot_ranks(rows: Sequence[Mapping[str, Any]]) -> tuple[SlotRank, ...]:
    values = itemgetter(*(one.name for one in fields(SlotRank)))
    return tuple(SlotRank(*values(row)) for row in rows)


def _same(value: Any) -> Any:
    return value


READERS: dict[str, Callable[[Any], Any]] = {
    "recipe": Recipe.from_dict,
    "ranks": _slot_ranks,
    "stock": StockFit.from_dict,
    "gone": tuple,
    "pruned": lambda rows: tuple(tuple(row) for row in rows),
    "bounds": tuple,
    "cross_entropy": tuple,
    "divergence": tuple,
}  # of fields that are more than JSON values


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
