"""What may follow what: one table that the checks of the core, the command line, the page and the
error messages read.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import InputError
from .history import (
    Compressed,
    ExpertsPruned,
    Healed,
    Quantised,
    SharedBases,
    Shortened,
    Sliced,
    Sparsified,
    Step,
)
from .methods import METHODS, find_method
from .methods.method import KEYS_AND_VALUES
from .policies import find_policy
from .recipe import Recipe


def _always(_recipe: Recipe) -> bool:
    return True


def _reads_gradients(recipe: Recipe) -> bool:
    method = find_method(recipe.method)
    chosen = method.choose(recipe.options)
    return bool(method.gradients(chosen)) or find_policy(recipe.policy).needs == "gradients"


def _reads_gradients_of_experts(recipe: Recipe) -> bool:
    slopes = find_policy(recipe.policy).needs == "slopes"
    return find_method(recipe.method).experts and (slopes or _reads_gradients(recipe))


def _gradients_read_by(recipe: Recipe) -> str:
    """What of a recipe would have to be another for it to read no gradients."""
    method, policy = find_method(recipe.method), find_policy(recipe.policy)
    own = method.gradients_read_by(method.choose(recipe.options))
    by_policy = f"policy {policy.name}" if policy.needs in ("gradients", "slopes") else ""
    return " and ".join(filter(None, (own, by_policy)))


def _stores_identities(recipe: Recipe) -> bool:
    return recipe.method == "latentllm" or recipe.options.get("stored") == "pivots"


def _joins_values(recipe: Recipe) -> bool:
    return recipe.method == "latentllm" and recipe.options.get("vo", "split") != "split"


def _replaces_attention(recipe: Recipe) -> bool:
    method = find_method(recipe.method)
    given = method.given(recipe.options, recipe.budget)
    joined = given.get("forms") == "latents" or given.get("attention") == "joint_qkv"
    return method.covers <= KEYS_AND_VALUES or joined or _joins_values(recipe)


@dataclass(frozen=True)
class Unfit:
    """Why a step cannot take what the layers of a model hold, and by which recipes not."""

    why: str
    by: Callable[[Recipe], bool] = _always


@dataclass(frozen=True)
class Rule:
    """When a step may be taken.

    needs: steps of which one must have been taken before, and the sentence where none was. refused:
    steps after which it may not be taken, each with the sentence that says why. unfit: what the
    layers may not hold, by the names of `lrcore.models.structure.forms_of`. In a sentence `{name}`
    is the model's, and `{gradients}` what of the recipe reads gradients.
    """

    needs: tuple[tuple[type[Any], ...], str] | None = None
    refused: Mapping[type[Any], str] = field(default_factory=dict)
    unfit: Mapping[str, Unfit] = field(default_factory=dict)


_RANKS_BELONG = (
    "'{name}' is compressed: its ranks belong to the layers it has. Shorten the dense model, then "
    "compress it."
)
_ONE_BASIS = (
    "'{name}' is compressed or sliced already, and a second basis would undo the first. Slice the "
    "dense model."
)
_FULL_PRECISION = (
    "'{name}' is quantised, and compressing would write its matrices in full precision again. "
    "Compress the model that it was made of, then quantise."
)
_MASKED = (
    "'{name}' has sparse matrices, and their masks would be lost. Take this step first, then "
    "make it sparse."
)
_BASES_APART = (
    "Layers of '{name}' share bases, which would be written apart. Take this step on the model "
    "that it was made of."
)
_ON_MLPS = [row.name for row in METHODS.values() if "down" in row.covers]
_OF_EXPERTS = [
    row.name for row in METHODS.values() if row.experts and not row.gradients(row.choose({}))
]
UNFIT: dict[str, Unfit] = {
    "quantised": Unfit(_FULL_PRECISION),
    "channel": Unfit(
        "'{name}' has a rotary channel, which belongs to the latents it has. Compress its "
        "dense model, then heal."
    ),
    "shared": Unfit(
        "Projections of '{name}' share one latent, whose size no method can divide between them. "
        "Compress the model that it was made of."
    ),
    "latent": Unfit(
        "'{name}' caches latents of keys and values, which latentllm and stored=pivots do not make "
        "smaller. Choose another method or stored=pairs, or take this step first and care after "
        "it.",
        _stores_identities,
    ),
    "summed": Unfit(
        "'{name}' sums its heads before the output projection (ov=overall), so values and output "
        "are not solved together. Choose vo=split.",
        _joins_values,
    ),
    "sinks": Unfit(
        "Attention weights of '{name}' do not sum to one, so values and output are not solved "
        "together. Choose vo=split.",
        _joins_values,
    ),
    "kept": Unfit(
        "The attention of '{name}' stays as its family has it: its matrices are factored, but its "
        f"cache does not change. Methods that fit, with their own options: {', '.join(_ON_MLPS)}.",
        _replaces_attention,
    ),
    "factored": Unfit(
        "'{name}' has factored matrices, and gradients are of dense ones. Change {gradients}, or "
        "start from the dense model.",
        _reads_gradients,
    ),
    "experts": Unfit(
        "'{name}' has experts, of which no gradients are collected. Change {gradients}: with their "
        f"own options and policy uniform these methods read none: {', '.join(_OF_EXPERTS)}.",
        _reads_gradients_of_experts,
    ),
}
MAY_FOLLOW: dict[type[Any], Rule] = {
    Compressed: Rule(
        None,
        {Quantised: _FULL_PRECISION, Sparsified: _MASKED, SharedBases: _BASES_APART},
        UNFIT,
    ),
    Healed: Rule(
        (
            (Compressed, ExpertsPruned, Quantised, SharedBases, Shortened, Sliced, Sparsified),
            "'{name}' is no compressed model: no report of what was done to it came with it. Give "
            "the folder that `compress --out`, or another command that changes a model, wrote.",
        ),
    ),
    Quantised: Rule(
        None,
        {
            Quantised: "'{name}' is quantised already. Quantise the model that it was made of.",
            SharedBases: _BASES_APART,
            Sparsified: "'{name}' has sparse matrices, which stay in full precision. Quantise "
            "the model that it was made of.",
        },
    ),
    SharedBases: Rule(
        None,
        dict.fromkeys(
            (Compressed, Quantised, SharedBases, Sliced, Sparsified),
            "'{name}' is changed already. Share bases of the dense model, or of a shortened one.",
        ),
    ),
    Shortened: Rule(
        None,
        {
            Compressed: _RANKS_BELONG,
            Quantised: _RANKS_BELONG,
            SharedBases: _RANKS_BELONG,
            Sliced: _RANKS_BELONG,
            Sparsified: _MASKED,
        },
    ),
    ExpertsPruned: Rule(
        None,
        {
            Compressed: "'{name}' is compressed: its ranks belong to the experts it has. Prune the "
            "experts of the dense model, then compress it.",
            Quantised: "'{name}' is quantised. Prune the experts of the model that it was made of, "
            "then quantise.",
            SharedBases: _BASES_APART,
            Sparsified: _MASKED,
        },
    ),
    Sliced: Rule(
        None,
        {
            Compressed: _ONE_BASIS,
            Quantised: _ONE_BASIS,
            SharedBases: _ONE_BASIS,
            Sliced: _ONE_BASIS,
            Sparsified: _MASKED,
        },
    ),
    Sparsified: Rule(
        None,
        {
            Quantised: "'{name}' is quantised. Make the model sparse that it was made of.",
            SharedBases: _BASES_APART,
            Sparsified: "'{name}' has sparse matrices already. Start from the model that it "
            "was made of.",
        },
    ),
}

# What the layers of a model tell of steps where no report does: transformers keeps none.
TOLD_BY_LAYERS: Mapping[str, type[Any]] = {
    "replaced": Compressed,
    "quantised": Quantised,
    "bases": SharedBases,
    "sliced": Sliced,
    "masked": Sparsified,
}


def refusal(
    step: type[Any],
    history: Sequence[Step],
    name: str,
    forms: Collection[str] = (),
    recipe: Recipe | None = None,
) -> str | None:
    """Why a step may not follow a history, in one sentence about the model `name`; None where it
    may.

    Only what happened since the last compression counts, which writes every matrix anew. forms:
    what the layers hold now, see `lrcore.forms_of`, which tells what happened where no history
    does; recipe: of a compression.
    """
    rule, since = MAY_FOLLOW[step], since_compressed(history)
    if rule.needs is not None and not any(isinstance(one, rule.needs[0]) for one in since):
        return rule.needs[1].format(name=name)
    taken = {type(one) for one in since}
    if not history:
        taken = {kind for form, kind in TOLD_BY_LAYERS.items() if form in forms}
    sentence = next((why for kind, why in rule.refused.items() if kind in taken), None)
    by = recipe or Recipe()
    unfit = (one.why for form, one in rule.unfit.items() if form in forms and one.by(by))
    sentence = sentence or next(unfit, None)
    if sentence is None:
        return None
    gradients = _gradients_read_by(by) if "{gradients}" in sentence else ""
    return sentence.format(name=name, gradients=gradients)


def check_may_follow(
    step: type[Any],
    history: Sequence[Step],
    name: str,
    forms: Collection[str] = (),
    recipe: Recipe | None = None,
) -> None:
    """Raise InputError where a step may not follow a history; see `refusal`."""
    reason = refusal(step, history, name, forms, recipe)
    if reason is not None:
        raise InputError(reason)


def since_compressed(history: Sequence[Step]) -> Sequence[Step]:
    """The steps from the last compression on, which writes every matrix anew; all without one."""
    places = [place for place, step in enumerate(history) if isinstance(step, Compressed)]
    return history[places[-1] :] if places else history
