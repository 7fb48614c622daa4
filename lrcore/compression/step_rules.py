"""Rules for the order of compression steps, for checks, command line, page and messages."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..layers.statistics import OUTPUT_CURVATURES
from ..methods import METHODS, find_method
from ..methods.method import KEYS_AND_VALUES
from ..ranks.policies import find_policy
from ..recipes.history import (
    Compressed,
    ExpertsPruned,
    Healed,
    LayersDropped,
    Quantized,
    SharedBases,
    Sliced,
    Sparsified,
    Step,
)
from ..recipes.recipe import Recipe
from ..system.errors import InputError


def _always(_recipe: Recipe) -> bool:
    return True


def _reads_gradients(recipe: Recipe) -> bool:
    method = find_method(recipe.method)
    chosen = method.choose(recipe.options)
    return bool(method.gradients(chosen)) or find_policy(recipe.policy).needs == "gradients"


def _reads_expert_gradients(recipe: Recipe) -> bool:
    """Return whether a recipe reads gradients of the weights of experts."""
    method = find_method(recipe.method)
    of_weights = method.gradients(method.choose(recipe.options)).difference(OUTPUT_CURVATURES)
    by_policy = find_policy(recipe.policy).needs in ("gradients", "slopes")
    return method.solves_experts and (by_policy or bool(of_weights))


def _gradient_readers(recipe: Recipe) -> str:
    """Return the settings of a recipe that read gradients, for a message."""
    method, policy = find_method(recipe.method), find_policy(recipe.policy)
    by_method = method.gradient_user(method.choose(recipe.options))
    by_policy = f"policy {policy.name}" if policy.needs in ("gradients", "slopes") else ""
    return " and ".join(filter(None, (by_method, by_policy)))


def _stores_identities(recipe: Recipe) -> bool:
    return recipe.method == "latentllm" or recipe.options.get("stored") == "pivots"


def _joins_values(recipe: Recipe) -> bool:
    return recipe.method == "latentllm" and recipe.options.get("vo", "split") != "split"


def _replaces_attention(recipe: Recipe) -> bool:
    method = find_method(recipe.method)
    given = method.resolve_auto(recipe.options, recipe.budget)
    joined = given.get("forms") == "latents" or given.get("attention") == "joint_qkv"
    return method.covers <= KEYS_AND_VALUES or joined or _joins_values(recipe)


@dataclass(frozen=True)
class Incompatibility:
    """A structure of a model's layers that a step cannot process.

    message: the reason and the remedy. applies_to: whether it concerns a recipe.
    """

    message: str
    applies_to: Callable[[Recipe], bool] = _always


@dataclass(frozen=True)
class Rule:
    """The conditions of a step.

    needs: steps of which at least one must precede it, and the message otherwise. refused: steps
    that must not precede it, each with a message. incompatible: structures of the layers that it
    cannot process, by the names of `lrcore.models.structure.compressed_structures`. In a message,
    `{name}` is the name of the model, and `{gradients}` the settings that read gradients.
    """

    needs: tuple[tuple[type[Any], ...], str] | None = None
    refused: Mapping[type[Any], str] = field(default_factory=dict)
    incompatible: Mapping[str, Incompatibility] = field(default_factory=dict)


_RANKS_PER_LAYER = (
    "'{name}' is compressed: its ranks belong to its current layers. Drop layers of the dense "
    "model, then compress it."
)
_SINGLE_BASIS = (
    "'{name}' is compressed or sliced, and a second basis would undo the first. Slice the dense "
    "model."
)
_FULL_PRECISION = (
    "'{name}' is quantized, and compressing would write its matrices in full precision again. "
    "Compress the unquantized model, then quantize."
)
_MASKED = (
    "'{name}' has sparse matrices, whose masks would be lost. Apply this step first, then make the "
    "model sparse."
)
_SEPARATE_BASES = (
    "Layers of '{name}' share bases, which would be stored separately. Apply this step to the "
    "model before it shared bases."
)
_MLP_METHODS = [row.name for row in METHODS.values() if "down" in row.covers]
_EXPERT_METHODS = [
    row.name for row in METHODS.values() if row.solves_experts and not row.gradients(row.choose({}))
]
MATRIX_METHODS = ("svd", "svd_llm", "kfac_svd", "fused")  # for families without a row
_NO_ROW = (
    "Of the family of '{name}' only the matrices are known, because it has no row in the table of "
    f"families. Compress them with {', '.join(MATRIX_METHODS[:-1])} or {MATRIX_METHODS[-1]}."
)
INCOMPATIBILITIES: dict[str, Incompatibility] = {
    "inferred": Incompatibility(_NO_ROW, lambda recipe: recipe.method not in MATRIX_METHODS),
    "quantized": Incompatibility(_FULL_PRECISION),
    "channel": Incompatibility(
        "'{name}' has a rotary channel, which belongs to its current latents. Compress the dense "
        "model, then heal."
    ),
    "shared": Incompatibility(
        "Projections of '{name}' share a latent, which no method can divide between them. Compress "
        "the model before it shared latents."
    ),
    "latent": Incompatibility(
        "'{name}' caches latents of keys and values, which latentllm and stored=pivots cannot make "
        "smaller. Choose another method or stored=pairs, or apply this step before care.",
        _stores_identities,
    ),
    "summed": Incompatibility(
        "'{name}' sums its heads before the output projection (ov=overall), so values and output "
        "are not solved together. Choose vo=split.",
        _joins_values,
    ),
    "sinks": Incompatibility(
        "Attention weights of '{name}' do not sum to one, so values and output are not solved "
        "together. Choose vo=split.",
        _joins_values,
    ),
    "native_attention": Incompatibility(
        "The attention of '{name}' keeps the form of its family: its matrices can be factored, but "
        "its cache cannot change. Suitable methods, with default options: "
        f"{', '.join(_MLP_METHODS)}.",
        _replaces_attention,
    ),
    "mixers": Incompatibility(
        "Some layers of '{name}' have a state instead of keys and values, so the cache cannot "
        "change. Suitable methods, with default options: "
        f"{', '.join(_MLP_METHODS)}.",
        _replaces_attention,
    ),
    "factored": Incompatibility(
        "'{name}' has factored matrices, but gradients need dense matrices. Change {gradients}, or "
        "start from the dense model.",
        _reads_gradients,
    ),
    "experts": Incompatibility(
        "'{name}' has experts, of which no gradients are collected. Change {gradients}: with their "
        f"own options and policy uniform these methods read none: {', '.join(_EXPERT_METHODS)}.",
        _reads_expert_gradients,
    ),
}
STEP_RULES: dict[type[Any], Rule] = {
    Compressed: Rule(
        None,
        {Quantized: _FULL_PRECISION, Sparsified: _MASKED, SharedBases: _SEPARATE_BASES},
        INCOMPATIBILITIES,
    ),
    Healed: Rule(
        (
            (Compressed, ExpertsPruned, Quantized, SharedBases, LayersDropped, Sliced, Sparsified),
            "'{name}' is not a compressed model: it has no report of compression steps. Use the "
            "output folder of `compress --out`, or of another command that changes a model.",
        ),
    ),
    Quantized: Rule(
        None,
        {
            Quantized: "'{name}' is already quantized. Quantize the unquantized model.",
            SharedBases: _SEPARATE_BASES,
            Sparsified: "'{name}' has sparse matrices, which stay in full precision. Quantize "
            "the model that it was made of.",
        },
    ),
    SharedBases: Rule(
        None,
        dict.fromkeys(
            (Compressed, Quantized, SharedBases, Sliced, Sparsified),
            "'{name}' is compressed. Share bases of the dense model, or of a model with dropped "
            "layers.",
        ),
        {"inferred": Incompatibility(_NO_ROW)},
    ),
    LayersDropped: Rule(
        None,
        {
            Compressed: _RANKS_PER_LAYER,
            Quantized: _RANKS_PER_LAYER,
            SharedBases: _RANKS_PER_LAYER,
            Sliced: _RANKS_PER_LAYER,
            Sparsified: _MASKED,
        },
        {"inferred": Incompatibility(_NO_ROW)},
    ),
    ExpertsPruned: Rule(
        None,
        {
            Compressed: "'{name}' is compressed: its ranks belong to its current experts. Prune "
            "the experts of the dense model, then compress it.",
            Quantized: "'{name}' is quantized. Prune the experts of the unquantized model, then "
            "quantize.",
            SharedBases: _SEPARATE_BASES,
            Sparsified: _MASKED,
        },
        {"inferred": Incompatibility(_NO_ROW)},
    ),
    Sliced: Rule(
        None,
        {
            Compressed: _SINGLE_BASIS,
            Quantized: _SINGLE_BASIS,
            SharedBases: _SINGLE_BASIS,
            Sliced: _SINGLE_BASIS,
            Sparsified: _MASKED,
        },
    ),
    Sparsified: Rule(
        None,
        {
            Quantized: "'{name}' is quantized. Make the unquantized model sparse.",
            SharedBases: _SEPARATE_BASES,
            Sparsified: "'{name}' already has sparse matrices. Start from the model before that.",
        },
    ),
}

# Steps by the structures that they leave in layers, for models without a report of their steps,
# which transformers does not keep.
STEP_OF_STRUCTURE: Mapping[str, type[Any]] = {
    "replaced": Compressed,
    "quantized": Quantized,
    "bases": SharedBases,
    "sliced": Sliced,
    "masked": Sparsified,
}


def step_conflict(
    step: type[Any],
    history: Sequence[Step],
    name: str,
    forms: Collection[str] = (),
    recipe: Recipe | None = None,
) -> str | None:
    """Return why a step may not follow a history, as a sentence about the model `name`, or None.

    Only steps since the last compression count, because it writes all matrices again. A compression
    to a budget of bytes also quantizes. forms: structures of the layers, see
    `lrcore.models.structure.compressed_structures`, for models without a history; recipe: of a
    compression.
    """
    rule, steps = STEP_RULES[step], steps_since_compression(history)
    if rule.needs is not None and not any(isinstance(past, rule.needs[0]) for past in steps):
        return rule.needs[1].format(name=name)
    kinds = {type(past) for past in steps} | {Quantized for past in steps if past.fixes_grids}
    if not history:
        kinds = {kind for form, kind in STEP_OF_STRUCTURE.items() if form in forms}
    recipe = recipe or Recipe()
    sentences = [message for kind, message in rule.refused.items() if kind in kinds]
    sentences += [
        entry.message
        for form, entry in rule.incompatible.items()
        if form in forms and entry.applies_to(recipe)
    ]
    if not sentences:
        return None
    sentence = sentences[0]
    gradients = _gradient_readers(recipe) if "{gradients}" in sentence else ""
    return sentence.format(name=name, gradients=gradients)


def check_may_follow(
    step: type[Any],
    history: Sequence[Step],
    name: str,
    forms: Collection[str] = (),
    recipe: Recipe | None = None,
) -> None:
    """Raise InputError if a step may not follow a history; see `step_conflict`."""
    reason = step_conflict(step, history, name, forms, recipe)
    if reason is not None:
        raise InputError(reason)


def steps_since_compression(history: Sequence[Step]) -> Sequence[Step]:
    """Return the steps from the last compression on, or all steps without one."""
    positions = [i for i, step in enumerate(history) if isinstance(step, Compressed)]
    return history[positions[-1] :] if positions else history
