"""Ranks become a network: every layer truncated, and where the recipe says so solved again on what
the compressed layers before it give.
"""

from collections.abc import Mapping

from transformers import PreTrainedModel

from ..errors import InputError
from ..methods import find_method
from ..models.architectures import architecture_of, text_config
from ..models.layers import clone, read_layer
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..progress import Progress
from ..recipe import Recipe
from ..spectra import Slot
from .factorise import Factorisation, truncate_layer
from .refit import refit_layer


def refits(recipe: Recipe, network: PreTrainedModel) -> bool:
    """Whether a recipe refits: as it says, or as its method does by itself.

    Raises InputError where it says so and the family cannot.
    """
    possible = not architecture_of(network).norm_after
    if recipe.refit == "on" and not possible:
        family = text_config(network).model_type
        raise InputError(
            f"A {family} model norms what a component gives before adding it, so no refit is "
            "linear there. Use refit 'off'."
        )
    return possible and (
        recipe.refit == "on" or (recipe.refit == "auto" and find_method(recipe.method).refit)
    )


def written(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorisation,
    ranks: Mapping[Slot, int],
    progress: Progress,
) -> PreTrainedModel:
    """A clone with every layer compressed to its ranks, one after the other; the calibration
    windows pass through it where the recipe needs them.

    Raises InputError as `refits` does.
    """
    refit = refits(recipe, model.network)
    network, row, total = clone(model.network), find_method(factors.method), len(factors.layers)
    needs = row.reads(factors.options)
    sequential, tokens = recipe.calibration == "sequential", factors.calibration.tokens
    small = LayerStream(network, tokens) if sequential or refit else None
    dense = LayerStream(clone(model.network), tokens) if refit else None
    for index in range(total):
        progress("compress", index, total)
        own = factors.layers[index]
        if sequential and needs:
            assert small is not None  # the recipe is sequential
            own_moments = small.run(index, needs, advance=False)
            assert own_moments is not None  # there are needs
            moments = factors.calibration.joined(own_moments, index)
            own = row.factor(read_layer(network, index), moments, factors.options)
        truncate_layer(network, index, own, ranks)
        if dense is not None and small is not None:
            refit_layer(network, index, dense, small)
        elif small is not None:
            small.run(index)
    progress("compress", total, total)
    return network
