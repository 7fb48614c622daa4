"""Compression of the layers of a network to their ranks, in sequence.

Each layer is truncated. If the recipe requires it, the layer is first solved again on the outputs
of the compressed layers before it, and refit after it.

Methods with `anchored` solve a layer part by part: q, k and v; o; gate and up; down. Each part is
solved on the outputs of the compressed parts before it, for the outputs of the dense model at the
same point.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from ...layers.linalg import to_float64
from ...layers.spectra import Slot
from ...layers.statistics import (
    CROSS,
    TAPS,
    Moments,
    at_least_float32,
    centered,
    check_finite_moments,
)
from ...methods import LayerFactors, Method, find_method
from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.layers import clone, layer_shapes, read_exact
from ...models.load import LoadedModel
from ...models.offload import present
from ...models.read_ahead import reading_ahead
from ...models.stream import BATCH, LayerStream, reader_of
from ...ranks.plan import RankPlan
from ...recipes.recipe import DISTILLED, TRAINED, Recipe
from ...system.errors import InputError
from ...system.progress import Progress
from .factorize import Factorization, truncate_layer
from .quantized_layer import bits_by_matrix, quantize_layer
from .refit import Streams, refit_layer, with_first_tokens
from .trained_layer import PASSES, LayerTraining, windows_per_step

REFITS = ("on", TRAINED, DISTILLED)  # settings of a recipe that refit with any method
# Cost of compressing with them, in forward passes over the calibration windows. A step of the
# training, with its gradients, costs three.
REFIT_PASSES, SEQUENTIAL_PASSES, TRAINING_PASSES = 5, 2, 3 * PASSES


def has_refit(recipe: Recipe, network: PreTrainedModel) -> bool:
    """Return whether a recipe refits a network, by setting or by default of the method.

    Raises InputError if the setting requires a refit that the family does not support.
    """
    possible = not architecture_of(network).has_further_updates
    if recipe.refit in REFITS and not possible:
        family = text_config(network).model_type
        raise InputError(
            f"Layers of family {family} add more to the residual stream than the outputs of "
            "attention and MLP, which a refit does not support. Use refit 'off'."
        )
    return possible and requests_refit(recipe)


def requests_refit(recipe: Recipe) -> bool:
    """Return whether a recipe refits if the family supports it.

    It does by setting, or if it leaves the choice to a method that refits by default.
    """
    return recipe.refit in REFITS or (recipe.refit == "auto" and find_method(recipe.method).refit)


def window_passes(recipe: Recipe, refit: bool) -> int:
    """Return the cost of compressing by a recipe, in passes over the calibration windows.

    refit: whether it refits, see `has_refit`. Passes before the compression, such as those for
    moments, are not included.
    """
    passes = SEQUENTIAL_PASSES * (recipe.calibration_mode == "sequential")
    return passes + refit * (REFIT_PASSES + TRAINING_PASSES * recipe.trains_layers)


def compress_layers(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorization,
    plan: RankPlan,
    progress: Progress,
) -> PreTrainedModel:
    """Return a clone of the network with each layer compressed to the ranks and bits of a plan.

    Slots with bits are quantized on the outputs of the compressed layers before them; a refit of
    the layer runs on what is quantized already. The calibration windows run through the network if
    the recipe or the bits require that. Raises InputError as `has_refit` does.
    """
    refit, total = has_refit(recipe, model.network), len(factors.layers)
    network, row = clone(model.network), find_method(factors.method)
    sequential, tokens = recipe.calibration_mode == "sequential", factors.calibration.tokens
    anchored = sequential and row.is_anchored
    training = LayerTraining() if refit and recipe.trains_layers else None
    batch = BATCH if training is None else windows_per_step(tokens.shape[1])
    small = LayerStream(network, tokens, batch) if sequential or refit or plan.bits else None
    dense = LayerStream(clone(model.network), tokens, batch) if refit or anchored else None
    fitted: tuple[Streams, ...] = ()
    if refit and dense is not None and small is not None:
        fitted = with_first_tokens(Streams(dense, small), tokens)
    with reading_ahead(network, *(() if dense is None else (dense.network,))):
        for index in range(total):
            progress("compress", index, total)
            if anchored and dense is not None and small is not None:
                compress_anchored(
                    network, index, (dense, small), (row, factors.options), plan.ranks
                )
            else:
                stream = small if sequential else None
                layer_factors = _solve_layer(network, index, factors, stream)
                truncate_layer(network, index, layer_factors, plan.ranks)
            layer_bits = bits_by_matrix(row, plan.bits, index)
            if fitted:
                refit_layer(network, index, fitted, training, layer_bits)
                continue
            if layer_bits and small is not None:
                quantize_layer(network, index, layer_bits, small)
            for running in (dense, small):
                if running is not None:
                    running.run(index)
    progress("compress", total, total)
    return network


def _solve_layer(
    network: PreTrainedModel, index: int, factors: Factorization, small: LayerStream | None
) -> LayerFactors:
    """Return the factors of a layer.

    small: the stream of the compressed network, if the factors are to be computed from new moments.
    """
    row = find_method(factors.method)
    needs = row.reads(factors.options)
    if small is None or not needs:
        return factors.layers[index]
    collected = small.run(index, needs, advance=False)
    assert collected is not None  # needs is not empty
    moments = factors.calibration.with_gradient_statistics(collected, index)
    return row.factor(read_exact(network, index), moments, factors.options)


def compress_anchored(
    network: PreTrainedModel,
    index: int,
    streams: tuple[LayerStream, LayerStream],
    solver: tuple[Method, Any],
    ranks: Mapping[Slot, int],
) -> None:
    """Compress layer `index` of the network to the ranks, part by part.

    streams: of the dense network and of this network, both at the input of the layer; they stay
    there. solver: a method that reads cross moments, and the options.
    """
    (dense, small), (method, options) = streams, solver
    with present(decoder_layers(network)[index]), present(decoder_layers(dense.network)[index]):
        names = layer_shapes(network, index).matrices()
        for tap in dict.fromkeys(TAPS[name] for name in names):  # in forward order
            layer, reader = read_exact(network, index), reader_of(tap, names)
            assert reader is not None  # a matrix reads the tap
            moments = cross_moments(dense, small, index, tap, reader)
            part_factors = method.factor(layer, moments, options)
            part_ranks = {slot: rank for slot, rank in ranks.items() if slot[1] in part_factors}
            truncate_layer(network, index, part_factors, part_ranks)


def cross_moments(
    dense: LayerStream, small: LayerStream, index: int, tap: str, reader: str
) -> Moments:
    """Return `E[x' x'^T]` and `E[x x'^T]` at a tap of a layer, [n, n] float64 each.

    x is of the dense network, x' of the compressed network. reader: the projection with this input.
    Raises InputError if activations of the compressed network are not finite.
    """
    second: Any = 0.0  # a float until the first batch, then a tensor
    cross: Any = 0.0
    tokens = 0
    for number in range(len(small.hidden)):
        x, own = (
            at_least_float32(stream.input_of(index, number, reader)) for stream in (dense, small)
        )
        tokens += own.shape[:-1].numel()
        (x, _, mean_x), (own, _, mean) = (centered(rows.flatten(0, -2)) for rows in (x, own))
        second = second + to_float64(own.mT @ own).addr_(mean, mean)
        cross = cross + to_float64(x.mT @ own).addr_(mean_x, mean)
    moments = Moments({(tap, "second"): second / tokens, (tap, CROSS): cross / tokens}, tokens)
    check_finite_moments(moments, index)
    return moments
