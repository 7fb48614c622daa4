"""Pruning of decoder layers.

The result is a smaller dense model of the same family.

* influence: ShortGPT (Men et al. 2024), the layers of least Block Influence,
  1 - E cos(x_in, x_out), of the dense model, all at once.
* loss: SLEB (Song et al., ICML 2024), one layer after another, each time the layer without which
  the loss of the tokens is least.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from ....layers.statistics import BLOCK_INFLUENCE
from ....models.architectures import decoder_layers, has_token_inputs
from ....models.layers import clone
from ....models.load import LoadedModel
from ....models.stream import LayerStream
from ....models.structure import compressed_structures
from ....recipes.history import LayersDropped
from ....recipes.recipe import Recipe
from ....system.errors import InputError, unknown
from ....system.progress import Progress, silent
from ...calibration.calibrate import make_calibration_windows
from ...evidence.losses import BATCH, LENGTH, WINDOWS, mean_loss
from ...step_rules import check_may_follow
from ..derived_models import compare_size, derive_model
from .depth import skip_layers, without_layers


def prune_layers(
    model: LoadedModel,
    recipe: Recipe,
    layers: int,
    criterion: str = "influence",
    progress: Progress | None = None,
) -> LoadedModel:
    """Return the model without some decoder layers; the model itself is unchanged.

    The layers are selected on the calibration text of the recipe. criterion: "influence" on its
    windows, or "loss" on the first 32 of them, shortened to 128 tokens: at most layers x (all
    layers) passes.

    The history gains `LayersDropped`: the dropped layers, counted from 0, in order of their
    removal. Raises InputError for a number that leaves no layer, for an unknown criterion, for a
    compressed or offloaded model, and for a family whose layers cannot be dropped.
    """
    if criterion not in SELECTIONS:
        raise unknown("criterion", criterion, SELECTIONS)
    check_can_drop_layers(model, layers)
    windows = make_calibration_windows(model, recipe)
    dropped = SELECTIONS[criterion](model, windows.tokens, layers, progress or silent)
    made = drop_layers(model, dropped, criterion, recipe.seq_len)
    *before, step = made.history
    assert isinstance(step, LayersDropped)  # added by `drop_layers`
    return replace(made, history=(*before, replace(step, calibration=windows.protocol)))


def drop_layers(
    model: LoadedModel, layers: Collection[int], criterion: str = "hand", context: int = 256
) -> LoadedModel:
    """Return the model without some decoder layers, counted from 0; nothing is run.

    context: tokens before the token whose FLOPs the account counts. Raises InputError as
    `prune_layers` does.
    """
    check_can_drop_layers(model, len(layers))
    network, total = without_layers(model.network, layers), len(decoder_layers(model.network))
    made = derive_model(
        model,
        f"{model.name} without {len(layers)} of {total} layers",
        network,
        ["without", sorted(layers)],
    )
    step = LayersDropped(criterion, tuple(layers), total)
    return replace(made, history=(*model.history, step), account=compare_size(model, made, context))


def check_can_drop_layers(model: LoadedModel, layers: int) -> None:
    """Raise InputError if this number of layers cannot be dropped from the model."""
    total = len(decoder_layers(model.network))
    if not 1 <= layers < total:
        raise InputError(
            f"Cannot drop {layers} of the {total} decoder layers of '{model.name}'. Drop at least "
            "1 and keep at least 1."
        )
    check_may_follow(LayersDropped, model.history, model.name, compressed_structures(model.network))
    if has_token_inputs(model.network):
        raise InputError(
            f"Layers of '{model.name}' cannot be dropped: they have separate embeddings, or read "
            "the keys and values of earlier layers. Compress their matrices instead."
        )
    if model.offloaded:
        raise InputError("Offloaded layers cannot be renumbered. Load the model without offload.")


def select_by_influence(
    model: LoadedModel, tokens: Tensor, layers: int, progress: Progress
) -> list[int]:
    """Return the layers of least Block Influence on tokens [n, t], least first."""
    stream, influences = LayerStream(clone(model.network), tokens), []
    total = len(decoder_layers(model.network))
    for index in range(total):
        progress("influence", index, total)
        moments = stream.run(index, {BLOCK_INFLUENCE})
        assert moments is not None  # needs is not empty
        influences.append(moments.influence)
    progress("influence", total, total)
    return sorted(range(total), key=influences.__getitem__)[:layers]


@torch.inference_mode()
def select_by_loss(
    model: LoadedModel, tokens: Tensor, layers: int, progress: Progress
) -> list[int]:
    """Return layers in sequence, each without which the mean loss on tokens [n, t] is least.

    The layers before a candidate are run once for all later candidates.
    """
    network, total = clone(model.network), len(decoder_layers(model.network))
    dropped: list[int] = []
    tokens = tokens[:WINDOWS, :LENGTH]
    batches = tokens.to(network.device).split(BATCH)
    for done in range(layers):
        losses, stream = {}, LayerStream(network, tokens, BATCH)
        for index in (i for i in range(total) if i not in dropped):
            progress("loss", done * total + index, layers * total)
            with skip_layers(network, dropped):
                losses[index] = mean_loss(network, index + 1, stream.hidden, batches)
            stream.run(index)
        dropped.append(min(losses, key=losses.__getitem__))
    progress("loss", layers * total, layers * total)
    return dropped


SELECTIONS: dict[str, Callable[[LoadedModel, Tensor, int, Progress], list[int]]] = {
    "influence": select_by_influence,
    "loss": select_by_loss,
}
