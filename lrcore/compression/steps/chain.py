"""Chains of steps, and the table of their kinds. A step makes a new model from a model."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import product
from math import prod
from typing import Any

from ...methods import find_method
from ...models.load import LoadedModel
from ...ranks.policies import find_policy
from ...recipes import former_names
from ...recipes.recipe import Recipe
from ...system.errors import InputError, shown, unknown
from ...system.files import cache_key
from ...system.progress import Progress
from ..pipeline.compress import compress
from ..solve.factorize import Factorization
from .expert_pruning.prune_experts import prune_experts
from .healing.healing import heal
from .layer_pruning.prune_layers import prune_layers
from .quantize import quantize
from .share import share_bases
from .slicing.slicing import slice_hidden
from .sparsify import sparsify
from .step_settings import (
    LORA,
    ExpertPruning,
    Healing,
    LayerPruning,
    Quantizing,
    Sharing,
    Slicing,
    Sparsifying,
)

MAX_MODELS = 10_000  # of a sweep
# Fields of a recipe that have a column in the table of a sweep.
IN_COLUMNS = ("method", "policy", "ratio", "data", "samples", "seq_len", "seed", "rank_overrides")
TEXT = ("data", "samples", "seq_len", "sampling", "seed", "bos")  # fields of a recipe for the text


@dataclass(frozen=True)
class Label:
    """The name of a step in a table: the method, the policy or criterion, and the ratio."""

    method: str
    choice: str | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        share = None if self.ratio is None else f"{self.ratio:.0%}"
        return " ".join(part for part in (self.method, self.choice, share) if part)


@dataclass(frozen=True)
class StepContext:
    """The context of a step in a chain, besides the model that it starts from.

    factors: returns the factorization for a compression of the model, possibly a shared one.
    earlier: returns a model of the same chain by fingerprint, or None.
    """

    progress: Progress
    factors: Callable[[LoadedModel, Recipe], Factorization]
    earlier: Callable[[str], LoadedModel | None]


@dataclass(frozen=True)
class ChainStep:
    """A step of a chain.

    kind: key of `TRANSFORMS`. recipe: only the fields in `reads` have an effect. settings: the
    step's settings besides the recipe, or None.
    """

    kind: str
    recipe: Recipe
    settings: Any = None

    @property
    def label(self) -> Label:
        return TRANSFORMS[self.kind].label(self)

    @property
    def options(self) -> str | None:
        """The options that differ from their defaults and are not in the label: "group=16, seed=1".

        None if all options have their defaults.
        """
        source: Any = self.recipe if self.settings is None else self.settings
        defaults, words = TRANSFORMS[self.kind].unlabeled(), []
        for name, default in defaults.items():
            value = getattr(source, name)
            if value != default:
                inner = value if isinstance(value, Mapping) else {name: value}
                words += [f"{key}={entry}" for key, entry in inner.items()]
        return ", ".join(words) or None

    @property
    def title(self) -> str:
        """The label with the options: "svd uniform 20% (refit=on)"."""
        return f"{self.label} ({self.options})" if self.options else str(self.label)

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of the recipe that the step reads."""
        if not getattr(self.settings, "reads_text", True):
            return ()
        return TRANSFORMS[self.kind].reads

    @property
    def reads_text(self) -> str | None:
        """The text that the step calibrates or trains on, or None."""
        data: str | None = getattr(self.settings, "data", None)
        return data or (self.recipe.data if "data" in self.reads else None)

    @property
    def measures_text(self) -> str | None:
        """The text that the step's settings name for measurements, or None."""
        test: str | None = getattr(self.settings, "test", None)
        return test

    def apply(self, model: LoadedModel, context: StepContext) -> LoadedModel:
        """Return the model that this step makes from `model`, which is unchanged."""
        return TRANSFORMS[self.kind].apply(model, self, context)

    def to_dict(self) -> dict[str, Any]:
        """Return {kind: each field that the step reads}, JSON-able."""
        values = former_names.current_recipe(self.recipe.identity())
        settings = {} if self.settings is None else asdict(self.settings)
        return {self.kind: {name: values[name] for name in self.reads if name in values} | settings}

    def identity(self) -> dict[str, Any]:
        """Return the values that cache keys are computed from: `to_dict` with the former names."""
        ((kind, values),) = self.to_dict().items()
        return dict([former_names.former_step(kind, values)])


Chain = tuple[ChainStep, ...]


def chain_key(chain: Chain) -> str:
    """Return the key of a chain: equal for the same steps with the same settings."""
    return cache_key([step.identity() for step in chain])


@dataclass(frozen=True)
class Transform:
    """A kind of step: a row of `TRANSFORMS`.

    reads: the fields of a recipe that the step reads besides model, device and dtype, unless its
    settings have `reads_text` False. settings: the dataclass of the settings, or None. labeled: the
    settings that are in the label, or that do not change the model.
    """

    apply: Callable[[LoadedModel, ChainStep, StepContext], LoadedModel]
    label: Callable[[ChainStep], Label]
    reads: tuple[str, ...] = ()
    settings: type[Any] | None = None
    labeled: tuple[str, ...] = ()

    def unlabeled(self) -> dict[str, Any]:
        """Return the defaults of fields that are in no label and no column of a table."""
        if self.settings is not None:
            return {f.name: f.default for f in fields(self.settings) if f.name not in self.labeled}
        default, names = Recipe(), Recipe.fields_of("windows", "passes", "methods", "plan")
        return {name: getattr(default, name) for name in names if name not in IN_COLUMNS}

    def step(self, kind: str, values: Mapping[str, Any], base: Recipe) -> ChainStep:
        """Return a step from plain values; other fields are those of the base recipe, or defaults.

        Raises InputError for an unknown or missing field, or a value out of range.
        """
        all_fields = () if self.settings is None else fields(self.settings)
        settings_fields = {field.name: field for field in all_fields}
        for name in values:
            if name not in {*settings_fields, *self.reads}:
                raise unknown(f"field of {kind}", str(name), {*settings_fields, *self.reads})
        for name, field in settings_fields.items():
            is_required = field.default is MISSING and field.default_factory is MISSING
            if is_required and name not in values:
                raise InputError(f"A step '{kind}' needs {name}: write {kind}: {{{name}: ...}}.")
        recipe = vary_recipe(
            base, **{name: values[name] for name in values if name not in settings_fields}
        )
        chosen = {name: values[name] for name in values if name in settings_fields}
        return ChainStep(kind, recipe, self.settings and self.settings(**chosen))


def vary_recipe(base: Recipe, **changes: Any) -> Recipe:
    """Return a base recipe with some fields changed.

    With a different method the options and component ratios are reset, with a different policy the
    policy options, and manual ranks in any case. A policy without a temperature gets none.

    Raises InputError for an unknown method or policy and for a value out of range.
    """
    method, policy = (changes.get(name, getattr(base, name)) for name in ("method", "policy"))
    find_method(method)
    has_temperature = find_policy(policy).has_temperature
    dropped: dict[str, Any] = {"rank_overrides": {}}
    if method != base.method:
        dropped |= {"options": {}, "component_ratios": {}}
    if policy != base.policy:
        dropped["policy_options"] = {}
    recipe = base.with_(**dropped | changes)
    return recipe if has_temperature else recipe.with_(temperature=None)


def read_chains(row: Any, base: Recipe) -> Iterator[Chain]:
    """Yield the chains that a row of a sweep defines, over a base recipe.

    row: a step, or a list of steps. A step is the name of a kind, or {kind: {field: value}}; if a
    value is a list, there is a chain for each entry.

    Raises InputError for an unknown kind or field, and for a value out of range.
    """
    steps = row if isinstance(row, list | tuple) else [row]
    if not steps:
        raise InputError("A row needs at least one step, such as compress.")
    choices = [tuple(_alternatives(step)) for step in steps]
    check_sweep_size(map(len, choices))
    for chosen in product(*choices):
        yield tuple(TRANSFORMS[kind].step(kind, fields_, base) for kind, fields_ in chosen)


def check_sweep_size(counts: Iterable[int]) -> None:
    """Raise InputError if lists of these lengths have more combinations than a sweep allows."""
    number = prod(counts)
    if number > MAX_MODELS:
        count = f"{number:,}" if number < 10**15 else "more than 10^15"
        raise InputError(
            f"The lists define {count} models, but a sweep has at most {MAX_MODELS:,}. "
            "Shorten them."
        )


def _alternatives(step: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and fields of each step that a step with lists defines."""
    if isinstance(step, str):
        step = {step: {}}
    if not isinstance(step, Mapping) or len(step) != 1:
        raise InputError(f"A step must have the form 'kind: {{field: value}}', got {shown(step)}.")
    ((kind, fields_),) = step.items()
    fields_ = {} if fields_ is None else fields_
    if not isinstance(fields_, Mapping):
        raise InputError(
            f"The fields of a step must be a mapping, such as {kind}: {{}}; got {shown(fields_)}."
        )
    kind, fields_ = former_names.current_step(str(kind), fields_)
    if kind not in TRANSFORMS:
        raise unknown("step", kind, TRANSFORMS)
    lists = [value if isinstance(value, list | tuple) else [value] for value in fields_.values()]
    check_sweep_size(map(len, lists))
    for values in product(*lists):
        yield kind, dict(zip(fields_, values, strict=True))


def _compressed(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    factors = context.factors(model, step.recipe)
    return compress(model, step.recipe, factors, progress=context.progress)


def _layers_pruned(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    settings: LayerPruning = step.settings
    return prune_layers(model, step.recipe, settings.layers, settings.criterion, context.progress)


def _experts_pruned(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    return prune_experts(model, step.recipe, step.settings, context.progress)


def _sliced(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    settings: Slicing = step.settings
    return slice_hidden(model, step.recipe, settings.rotations, settings.multiple, context.progress)


def _shared(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    settings: Sharing = step.settings
    return share_bases(model, step.recipe, settings.group, context.progress)


def _quantized(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    settings: Quantizing = step.settings
    return quantize(
        model,
        settings.bits,
        settings.group,
        context.progress,
        quantizer=settings.quantizer,
        recipe=step.recipe,
    )


def _sparsified(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    settings: Sparsifying = step.settings
    return sparsify(model, step.recipe, settings, context.progress)


def _healed(model: LoadedModel, step: ChainStep, context: StepContext) -> LoadedModel:
    teacher = context.earlier(model.base.fingerprint) if model.base else None
    return heal(model, step.settings, teacher=teacher, progress=context.progress)


def _healing_label(step: ChainStep) -> Label:
    settings: Healing = step.settings
    has_adapters = settings.train in LORA
    title = f"{settings.train} {settings.lora_rank}" if has_adapters else "heal"
    return Label(f"{title} {settings.steps} steps")


TRANSFORMS: dict[str, Transform] = {
    "compress": Transform(
        _compressed,
        lambda step: Label(step.recipe.method, step.recipe.policy, step.recipe.ratio),
        Recipe.fields_of("windows", "passes", "methods", "plan"),
    ),
    "prune-layers": Transform(
        _layers_pruned,
        lambda step: Label(f"prune-layers {step.settings.layers}", step.settings.criterion),
        TEXT,
        LayerPruning,
        ("layers", "criterion"),
    ),
    "prune-experts": Transform(
        _experts_pruned,
        lambda step: Label(f"prune-experts {step.settings.experts}", step.settings.criterion),
        TEXT,
        ExpertPruning,
        ("experts", "criterion"),
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
    "quantize": Transform(
        _quantized,
        lambda step: Label(f"{step.settings.quantizer} {step.settings.bits} bit"),
        TEXT,
        Quantizing,
        ("quantizer", "bits"),
    ),
    "sparsify": Transform(
        _sparsified,
        lambda step: Label(step.settings.title, step.settings.criterion),
        TEXT,
        Sparsifying,
        ("criterion", "pattern", "density"),
    ),
    "heal": Transform(
        _healed,
        _healing_label,
        settings=Healing,
        labeled=("train", "steps", "lora_rank", "test", "test_samples"),
    ),
}
