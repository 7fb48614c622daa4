"""Ranks become a network: every layer truncated, and where the recipe says so solved again on what
the compressed layers before it give.
"""

from collections.abc import Mapping

from transformers import PreTrainedModel

from ..errors import InputError
from ..methods import LayerFactors, find_method
from ..models.architectures import architecture_of, text_config
from ..models.layers import clone, read_exact
from ..models.load import LoadedModel
from ..models.read_ahead import reading_ahead
from ..models.stream import LayerStream
from ..progress import Progress
from ..recipe import TRAINED, Recipe
from ..spectra import Slot
from .anchor import compress_anchored
from .factorise import Factorisation, truncate_layer
from .refit import Streams, refit_layer, with_first_tokens

REFITS = ("on", TRAINED)  # what a recipe says to be refit by any method


def refits(recipe: Recipe, network: PreTrainedModel) -> bool:
    """Whether a recipe refits: as it says, or as its method does by itself.

    Raises InputError where it says so and the family cannot.
    """
    possible = not architecture_of(network).adds_more
    if recipe.refit in REFITS and not possible:
        family = text_config(network).model_type
        raise InputError(
            f"In the family {family} a layer adds more to the stream than what attention and MLP "
            "give, which no refit takes into account. Use refit 'off'."
        )
    return possible and asks_for_refit(recipe)


def asks_for_refit(recipe: Recipe) -> bool:
    """Whether a recipe refits where the family of its model can: it says so, or leaves it to a
    method that does.
    """
    return recipe.refit in REFITS or (recipe.refit == "auto" and find_method(recipe.method).refit)


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
    refit, total = refits(recipe, model.network), len(factors.layers)
    network, row = clone(model.network), find_method(factors.method)
    sequential, tokens = recipe.calibration == "sequential", factors.calibration.tokens
    anchored = sequential and row.anchored
    small = LayerStream(network, tokens) if sequential or refit else None
    dense = LayerStream(clone(model.network), tokens) if refit or anchored else None
    fitted: tuple[Streams, ...] = ()
    if refit and dense is not None and small is not None:
        fitted = with_first_tokens(Streams(dense, small), tokens)
    with reading_ahead(network, *(() if dense is None else (dense.network,))):
        for index in range(total):
            progress("compress", index, total)
            if anchored and dense is not None and small is not None:
                compress_anchored(network, index, (dense, small), (row, factors.options), ranks)
            else:
                again = small if sequential else None
                truncate_layer(network, index, _solved(network, index, factors, again), ranks)
            if fitted:
                refit_layer(network, index, fitted, recipe.trains)
                continue
            for stream in (dense, small):
                if stream is not None:
                    stream.run(index)
    progress("compress", total, total)
    return network


def _solved(
    network: PreTrainedModel, index: int, factors: Factorisation, small: LayerStream | None
) -> LayerFactors:
    """The factors of a layer; made again of the moments in the compressed network where its stream
    is given.
    """
    row = find_method(factors.method)
    needs = row.reads(factors.options)
    if small is None or not needs:
        return factors.layers[index]
    own = small.run(index, needs, advance=False)
    assert own is not None  # there are needs
    moments = factors.calibration.joined(own, index)
    return row.factor(read_exact(network, index), moments, factors.options)
