"""Whole decoder layers dropped: what is left is a smaller dense model of the same family, to be
compressed, measured or exported as any.

influence ShortGPT (Men et al. 2024): the layers of least Block Influence, 1 - E cos(x_in, x_out),
of the dense model, all at once loss SLEB (Song et al., ICML 2024): one after another, each time the
layer without which the loss of the tokens is least
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from ...calibration.calibrate import make_calibration_windows
from ...errors import InputError, unknown
from ...history import Shortened
from ...may_follow import check_may_follow
from ...models.architectures import decoder_layers, reads_tokens
from ...models.layers import clone
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...models.structure import forms_of
from ...progress import Progress, silent
from ...recipe import Recipe
from ...statistics import BLOCK_INFLUENCE
from ..derived import compared, derived
from ..evidence.losses import BATCH, LENGTH, WINDOWS, mean_loss
from .depth import skipping, without_layers


def shorten(
    model: LoadedModel,
    recipe: Recipe,
    layers: int,
    by: str = "influence",
    progress: Progress | None = None,
) -> LoadedModel:
    """The model without so many of its decoder layers, chosen on the calibration text of the
    recipe; the model given is untouched.

    by: "influence" on the recipe's windows, or "loss" on the first 32 of them, cut to 128 tokens:
    at most layers x (all layers) passes.
    Its history gains `Shortened`: the layers that went, counted from 0, in the order in which they
    went. Raises InputError for a number that leaves no layer, an unknown order, a compressed model,
    one whose layers are offloaded, and a family that cannot be shortened.
    """
    if by not in ORDERS:
        raise unknown("order", by, ORDERS)
    check_shortened(model, layers)
    windows = make_calibration_windows(model, recipe)
    gone = ORDERS[by](model, windows.tokens, layers, progress or silent)
    made = drop_layers(model, gone, by, recipe.seq_len)
    *before, step = made.history
    assert isinstance(step, Shortened)  # the last that `drop_layers` did
    return replace(made, history=(*before, replace(step, calibration=windows.protocol)))


def drop_layers(
    model: LoadedModel, gone: Collection[int], by: str = "hand", context: int = 256
) -> LoadedModel:
    """The model without the decoder layers named, counted from 0; nothing runs.

    by: what chose them, for the history.

    Raises InputError as `shorten` does. context: tokens before the one whose FLOPs the account
    counts.
    """
    check_shortened(model, len(gone))
    network, total = without_layers(model.network, gone), len(decoder_layers(model.network))
    made = derived(
        model,
        f"{model.name} without {len(gone)} of {total} layers",
        network,
        ["without", sorted(gone)],
    )
    step = Shortened(by, tuple(gone), total)
    return replace(made, history=(*model.history, step), account=compared(model, made, context))


def check_shortened(model: LoadedModel, layers: int) -> None:
    """Raise InputError where so many layers of this model cannot go."""
    total = len(decoder_layers(model.network))
    if not 1 <= layers < total:
        raise InputError(
            f"'{model.name}' has {total} decoder layers; {layers} of them were to go. Drop at "
            "least 1 and keep at least 1."
        )
    check_may_follow(Shortened, model.history, model.name, forms_of(model.network))
    if reads_tokens(model.network):
        raise InputError(
            f"The layers of '{model.name}' have embeddings of their own, or read the keys and "
            "values of earlier ones: none can be dropped. Compress their matrices instead."
        )
    if model.offloaded:
        raise InputError("Offloaded layers cannot be renumbered. Load the model without offload.")


def by_influence(model: LoadedModel, tokens: Tensor, layers: int, progress: Progress) -> list[int]:
    """The layers of least Block Influence on tokens [n, t], least first."""
    stream, influence = LayerStream(clone(model.network), tokens), []
    total = len(decoder_layers(model.network))
    for index in range(total):
        progress("influence", index, total)
        moments = stream.run(index, {BLOCK_INFLUENCE})
        assert moments is not None  # a need was given
        influence.append(moments.influence)
    progress("influence", total, total)
    return sorted(range(total), key=influence.__getitem__)[:layers]


@torch.inference_mode()
def by_loss(model: LoadedModel, tokens: Tensor, layers: int, progress: Progress) -> list[int]:
    """The layers that go one after another, each that without which the mean token loss on
    tokens [n, t] is least. What comes before a layer is run once for it and all after it.
    """
    network, total = clone(model.network), len(decoder_layers(model.network))
    gone: list[int] = []
    tokens = tokens[:WINDOWS, :LENGTH]
    batches = tokens.to(network.device).split(BATCH)
    for done in range(layers):
        losses, stream = {}, LayerStream(network, tokens, BATCH)
        for index in (i for i in range(total) if i not in gone):
            progress("loss", done * total + index, layers * total)
            with skipping(network, gone):
                losses[index] = mean_loss(network, index + 1, stream.hidden, batches)
            stream.run(index)
        gone.append(min(losses, key=losses.__getitem__))
    progress("loss", layers * total, layers * total)
    return gone


ORDERS: dict[str, Callable[[LoadedModel, Tensor, int, Progress], list[int]]] = {
    "influence": by_influence,
    "loss": by_loss,
}
