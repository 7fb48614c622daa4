"""Whether a dense model can go to a target at all, before anything is computed."""

from ..errors import InputError, with_article
from ..methods import METHODS, find_method
from ..models.architectures import text_config
from ..models.load import LoadedModel
from ..recipe import Recipe
from ..targets import BIASED_MLPS, FEWER_HEADS, TARGETS, Target
from .gguf_families import GGUF_FAMILIES
from .gguf_fit import layer_facts
from .mla import checked_layers
from .stock import structural_reasons


def check_target(model: LoadedModel, recipe: Recipe) -> None:
    """Raise InputError where no ranks of the recipe's method would let its target run this model,
    with the reason.
    """
    target, network = TARGETS[recipe.target], model.network
    if target.format == "gguf":
        layer_facts(network)
        _check_method(target, recipe.method, text_config(network).model_type)
    elif target.format == "mla":
        checked_layers(network)
    elif target.stock and (reasons := structural_reasons(network)):
        raise InputError(
            f"Target {target.name}: {reasons[0]}. Leave the target out; the folder then has its "
            "code."
        )


def _check_method(target: Target, method: str, family: str) -> None:
    """Raise InputError where a method adds biases, or removes other numbers of heads from layers,
    for which the family has no place in the file.
    """
    row = find_method(method)
    heads = FEWER_HEADS in row.own_structures()
    if GGUF_FAMILIES[family].plain or not (row.adds_biases or heads):
        return
    own = target.native - {BIASED_MLPS, FEWER_HEADS}
    what = (
        f"adds biases, which {with_article(family)} has no place for"
        if row.adds_biases
        else f"removes heads by layer, and {with_article(family)} has one number for all layers"
    )
    fit = [row.name for row in METHODS.values() if own & row.own_structures()]
    raise InputError(
        f"Target {target.name}: method {method} {what} there. Methods that fit: {', '.join(fit)}. "
        "Or leave the target out."
    )
