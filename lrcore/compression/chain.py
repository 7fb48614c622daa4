"""Chains: steps that each make a model of a model, as values, and the one table of their kinds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import product
from math import prod
from typing import Any

from ..errors import InputError, shown, unknown
from ..files import cache_key
from ..methods import find_method
from ..models.load import LoadedModel
from ..policies import find_policy
from ..progress import Progress
from ..recipe import Recipe
from .compress import compress
from .expert_pruning.prune import prune_experts
from .expert_pruning.settings import ExpertPruning
from .factorise import Factorisation
from .healing.healing import heal
from .healing.settings import LORA, Healing
from .quantise import quantise
from .quantising import Quantising
from .share import share_bases
from .sharing import Sharing
from .shortening.settings import Shortening
from .shortening.shorten import shorten
from .slicing.settings import Slicing
from .slicing.slicing import slice_hidden
from .sparsify import sparsify
from .sparsifying import Sparsifying

MOST = 10_000  # models of a sweep
IN_COLUMNS = ("method", "policy", "ratio", "data", "samples", "seq_len", "seed", "overrides")
TEXT = ("data", "samples", "seq_len", "sampling", "seed")  # of a recipe: what a text is read by


@dataclass(frozen=True)
class Label:
    """What a step is called in a table: the method, what chose, and the share to remove."""

    method: str
    choice: str | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        share = None if self.ratio is None else f"{self.ratio:.0%}"
        return " ".join(part for part in (self.method, self.choice, share) if part)


@dataclass(frozen=True)
class Around:
    """What a step is given besides the model that it starts from.

    factors: the factorisation that a compression of the model takes, as others may share it.
    earlier: a model of the same chain by its fingerprint; None where there is none.
    """

    progress: Progress
    factors: Callable[[LoadedModel, Recipe], Factorisation]
    earlier: Callable[[str], LoadedModel | None]


@dataclass(frozen=True)
class ChainStep:
    """One step. recipe: of its fields, the step reads those that its kind says; settings: its own,
    None where the recipe says all.
    """

    kind: str
    recipe: Recipe
    settings: Any = None

    @property
    def label(self) -> Label:
        return TRANSFORMS[self.kind].label(self)

    @property
    def options(self) -> str | None:
        """What it is given beside its label, where that is no default: "group=16, seed=1"; None for
        nothing.
        """
        read: Any = self.recipe if self.settings is None else self.settings
        usual, words = TRANSFORMS[self.kind].unlabelled(), []
        for name, default in usual.items():
            value = getattr(read, name)
            if value != default:
                inner = value if isinstance(value, Mapping) else {name: value}
                words += [f"{key}={one}" for key, one in inner.items()]
        return ", ".join(words) or None

    @property
    def title(self) -> str:
        """Its label, with its options: "svd uniform 20% (refit=on)"."""
        return f"{self.label} ({self.options})" if self.options else str(self.label)

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of the recipe that it reads."""
        if not getattr(self.settings, "reads_text", True):
            return ()
        return TRANSFORMS[self.kind].reads

    @property
    def reads_text(self) -> str | None:
        """The text that it calibrates or trains on; None where it reads none."""
        own = getattr(self.settings, "data", None)
        return own or (self.recipe.data if "data" in self.reads else None)

    @property
    def measures_text(self) -> str | None:
        """The text that it is measured on by itself; None where it is on none, or on the usual."""
        test: str | None = getattr(self.settings, "test", None)
        return test

    def apply(self, model: LoadedModel, around: Around) -> LoadedModel:
        """The model that this step makes of `model`, which is untouched."""
        return TRANSFORMS[self.kind].apply(model, self, around)

    def to_dict(self) -> dict[str, Any]:
        """{kind: every field that it reads}, JSON-able."""
        values = self.recipe.identity()
        own = {} if self.settings is None else asdict(self.settings)
        return {self.kind: {name: values[name] for name in self.reads if name in values} | own}


Chain = tuple[ChainStep, ...]


def chain_key(chain: Chain) -> str:
    """What a chain is known by: the same steps with the same settings."""
    return cache_key([step.to_dict() for step in chain])


@dataclass(frozen=True)
class Transform:
    """A kind of step: a row of `TRANSFORMS`.

    reads: the fields of a recipe that it reads besides model, device and dtype, where its settings
    do not say that it reads no text. settings: the dataclass of its own settings, None where it has
    none. labelled: the settings that the label has, or that the model does not depend on.
    """

    apply: Callable[[LoadedModel, ChainStep, Around], LoadedModel]
    label: Callable[[ChainStep], Label]
    reads: tuple[str, ...] = ()
    settings: type[Any] | None = None
    labelled: tuple[str, ...] = ()

    def unlabelled(self) -> dict[str, Any]:
        """The defaults of what neither a label nor a column of a table says."""
        if self.settings is not None:
            own = fields(self.settings)
            return {one.name: one.default for one in own if one.name not in self.labelled}
        default, names = Recipe(), Recipe.fields_of("windows", "passes", "methods", "plan")
        return {name: getattr(default, name) for name in names if name not in IN_COLUMNS}

    def step(self, kind: str, given: Mapping[str, Any], base: Recipe) -> ChainStep:
        """A step from plain values; what they do not name is the base recipe's, or a default.

        Raises InputError for an unknown field, one that is missing, or a value out of range.
        """
        own = {} if self.settings is None else {one.name: one for one in fields(self.settings)}
        for name in given:
            if name not in {*own, *self.reads}:
                raise unknown(f"field of {kind}", str(name), {*own, *self.reads})
        for name, one in own.items():
            if name not in given and one.default is MISSING and one.default_factory is MISSING:
                raise InputError(f"A step '{kind}' needs {name}: write {kind}: {{{name}: ...}}.")
        recipe = varied(base, **{name: given[name] for name in given if name not in own})
        chosen = {name: given[name] for name in given if name in own}
        return ChainStep(kind, recipe, self.settings and self.settings(**chosen))


def varied(base: Recipe, **changes: Any) -> Recipe:
    """A base recipe with some fields changed. Its options and component ratios go with its own
    method only, its policy options with its policy, and ranks set by hand with no other.

    Raises InputError for an unknown method or policy and for a value out of range.
    """
    method, policy = (changes.get(name, getattr(base, name)) for name in ("method", "policy"))
    find_method(method)
    find_policy(policy)
    dropped: dict[str, Any] = {"overrides": {}}
    if method != base.method:
        dropped |= {"options": {}, "component_ratios": {}}
    if policy != base.policy:
        dropped["policy_options"] = {}
    return base.with_(**dropped | changes)


def read_chains(row: Any, base: Recipe) -> Iterator[Chain]:
    """The chains that a row of a sweep stands for, over a base recipe.

    row: a step, or a list of steps. A step is the name of its kind, or {kind: {field: value}};
    where a value is a list, there is a chain for each entry.

    Raises InputError for an unknown kind or field, and for a value out of range.
    """
    steps = row if isinstance(row, list | tuple) else [row]
    if not steps:
        raise InputError(
            "A row without a step makes no model: name at least one, such as compress."
        )
    choices = [tuple(_alternatives(step)) for step in steps]
    check_many(map(len, choices))
    for chosen in product(*choices):
        yield tuple(TRANSFORMS[kind].step(kind, given, base) for kind, given in chosen)


def check_many(counts: Iterable[int]) -> None:
    """Raise InputError where the combinations of lists of these lengths are more than any sweep
    makes.
    """
    number = prod(counts)
    if number > MOST:
        many = f"{number:,}" if number < 10**15 else "more than 10^15"
        raise InputError(
            f"The lists stand for {many} models, and a sweep makes {MOST:,} at most. Shorten them."
        )


def _alternatives(step: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and fields of every step that one with lists stands for."""
    if isinstance(step, str):
        step = {step: {}}
    if not isinstance(step, Mapping) or len(step) != 1:
        raise InputError(
            f"A step reads 'kind: {{field: value}}', such as compress; got {shown(step)}."
        )
    ((kind, given),) = step.items()
    if kind not in TRANSFORMS:
        raise unknown("step", str(kind), TRANSFORMS)
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise InputError(
            f"The fields of a step are a mapping, such as {kind}: {{}}; got {shown(given)}."
        )
    lists = [value if isinstance(value, list | tuple) else [value] for value in given.values()]
    check_many(map(len, lists))
    for values in product(*lists):
        yield kind, dict(zip(given, values, strict=True))


def _compressed(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    factors = around.factors(model, step.recipe)
    return compress(model, step.recipe, factors, progress=around.progress)


def _shortened(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    one: Shortening = step.settings
    return shorten(model, step.recipe, one.layers, one.by, around.progress)


def _pruned(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    return prune_experts(model, step.recipe, step.settings, around.progress)


def _sliced(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    one: Slicing = step.settings
    return slice_hidden(model, step.recipe, one.rotations, one.multiple, around.progress)


def _shared(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    one: Sharing = step.settings
    return share_bases(model, step.recipe, one.group, around.progress)


def _quantised(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    one: Quantising = step.settings
    return quantise(
        model,
        one.bits,
        one.group,
        around.progress,
        quantiser=one.quantiser,
        recipe=step.recipe,
    )


def _sparsified(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    one: Sparsifying = step.settings
    return sparsify(model, step.recipe, one, around.progress)


def _healed(model: LoadedModel, step: ChainStep, around: Around) -> LoadedModel:
    teacher = around.earlier(model.base.fingerprint) if model.base else None
    return heal(model, step.settings, teacher=teacher, progress=around.progress)


def _healing_label(step: ChainStep) -> Label:
    one: Healing = step.settings
    what = f"{one.train} {one.lora_rank}" if one.train in LORA else "heal"
    return Label(f"{what} {one.steps} steps")


TRANSFORMS: dict[str, Transform] = {
    "compress": Transform(
        _compressed,
        lambda step: Label(step.recipe.method, step.recipe.policy, step.recipe.ratio),
        Recipe.fields_of("windows", "passes", "methods", "plan"),
    ),
    "shorten": Transform(
        _shortened,
        lambda step: Label(f"shorten {step.settings.layers}", step.settings.by),
        TEXT,
        Shortening,
        ("layers", "by"),
    ),
    "prune-experts": Transform(
        _pruned,
        lambda step: Label(f"prune-experts {step.settings.experts}", step.settings.by),
        TEXT,
        ExpertPruning,
        ("experts", "by"),
    ),
    "slice": Transform(
        _sliced,
        lambda step: Label("slice", step.settings.rotations, step.recipe.ratio),
        (*TEXT, "ratio"),
        Slicing,
        ("rotations",),
    ),
    "share": Transform(
        _shared,
        lambda step: Label("share", str(step.settings.group), step.recipe.ratio),
        (*TEXT, "ratio"),
        Sharing,
        ("group",),
    ),
    "quantise": Transform(
        _quantised,
        lambda step: Label(f"{step.settings.quantiser} {step.settings.bits} bit"),
        TEXT,
        Quantising,
        ("quantiser", "bits"),
    ),
    "sparsify": Transform(
        _sparsified,
        lambda step: Label(step.settings.title, step.settings.criterion),
        TEXT,
        Sparsifying,
        ("criterion", "pattern", "kept"),
    ),
    "heal": Transform(
        _healed,
        _healing_label,
        settings=Healing,
        labelled=("train", "steps", "lora_rank", "test", "test_samples"),
    ),
}
