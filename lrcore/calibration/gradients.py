"""Gradients of the loss by the weights of the dense model: a pass of its own, made only where a
method's options read what it gives.

Statistics, by the name of a matrix (see `statistics.Moments.values`):

* fisher [in]: `E_w sum_i G_ij^2`, the empirical Fisher information of input j (FWSVD, Hsu et al.
  2022: I-hat of a row of its W^T).
* taylor [d_f]: `E_w` of `sum w G` over a neuron's row in gate and up, or its column in down; signed
  (LLM-Pruner, first order).

G is the gradient of the mean token loss of one window, E_w the mean over the first WINDOWS
calibration windows. Float64, and kept on disk.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from ..cache import hold, trim
from ..errors import InputError
from ..files import cache_folder, cache_key
from ..layer import Layer, Linear
from ..linalg import column_squares
from ..models.architectures import decoder_layers
from ..models.layers import read_layer
from ..models.load import LoadedModel
from ..progress import Progress, silent
from ..spectra import Slot
from ..statistics import Moments, Need
from .calibrate import Calibration
from .moment_files import is_kept, layer_file, read_moments, write_moments

WINDOWS = 64
FORMAT = 1  # of the cached files; raise it whenever what is collected changes its meaning


def with_gradients(
    model: LoadedModel, calibration: Calibration, progress: Progress | None = None
) -> Calibration:
    """The calibration with the statistics of the gradients in its moments; instant where they are
    on disk already.

    One forward and one backward pass of the whole model per window: it takes the memory of the
    decoder's weights once more, and of one window's activations. Raises InputError for a model
    whose layers are offloaded, or whose matrices are not plain.
    """
    if model.offloaded:
        raise InputError(
            "These options need gradients of the whole model at once: load it without offload, or "
            "choose other options."
        )
    total = len(decoder_layers(model.network))
    if any(
        not isinstance(p, Linear)
        for i in range(total)
        for p in read_layer(model.network, i).matrices().values()
    ):
        raise InputError(
            "These options need the gradients of a dense model; this one is compressed already. "
            "Start from the dense one."
        )
    tokens = calibration.tokens[:WINDOWS]
    folder = cache_folder() / "gradients" / cache_key(FORMAT, calibration.key, len(tokens))
    held = hold(folder)
    if not all(is_kept(folder, layer) for layer in range(total)):
        for layer, moments in enumerate(collect(model.network, tokens, progress or silent)):
            write_moments(moments, layer_file(folder, layer))
        trim()
    return replace(calibration, gradients=folder, held=(*calibration.held, held))


def fisher_information(
    model: LoadedModel,
    calibration: Calibration,
    matrices: Mapping[Slot, Sequence[str]],
    progress: Progress | None = None,
) -> dict[Slot, float]:
    """Of every slot: the mean of `E_w G_ij^2` over all entries of its matrices, without their
    biases.

    matrices: the names of the matrices of each slot; those that a layer lacks are skipped.

    Raises InputError as `with_gradients` does, which collects the gradients.
    """
    folder = with_gradients(model, calibration, progress).gradients
    assert folder is not None  # with_gradients sets it
    by_layer: dict[int, list[str]] = {}
    for layer, name in matrices:
        by_layer.setdefault(layer, []).append(name)
    information = {}
    for layer, names in by_layer.items():
        weights = read_layer(model.network, layer).matrices()
        values = read_moments(layer_file(folder, layer)).values
        for name in names:
            own = [one for one in matrices[layer, name] if one in weights]
            entries = sum(weights[one].weight.numel() for one in own)
            total = sum(float(values[one, "fisher"].sum()) for one in own)
            information[layer, name] = total / entries
    return information


def collect(network: PreTrainedModel, tokens: Tensor, progress: Progress) -> list[Moments]:
    """The statistics of every layer over windows tokens [n, t]."""
    weights = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    sums: list[dict[Need, Tensor]] = [{} for _ in weights]
    for number, slopes in enumerate(window_gradients(network, tokens)):
        progress("gradients", number, len(tokens))
        for layer, slope, own in zip(weights, slopes, sums, strict=True):
            for need, value in statistics_of(layer, slope).items():
                own[need] = own[need] + value if need in own else value
    progress("gradients", len(tokens), len(tokens))
    return [
        Moments({need: value / len(tokens) for need, value in own.items()}, tokens.numel())
        for own in sums
    ]


def statistics_of(layer: Layer, slope: Layer) -> dict[Need, Tensor]:
    """The statistics of one layer and one window, [in] or [d_f] each, float64.

    slope: the gradients in place of the weights.
    """
    weights = layer.matrices()
    statistics: dict[Need, Tensor] = {}
    for name, projection in slope.matrices().items():
        statistics[name, "fisher"] = column_squares(projection.weight)
        if name in ("gate", "up", "down"):
            product = weights[name].weight.float() * projection.weight.float()
            statistics[name, "taylor"] = product.sum(
                0 if name == "down" else 1, dtype=torch.float64
            )
    return statistics


def window_gradients(network: PreTrainedModel, tokens: Tensor) -> Iterator[list[Layer]]:
    """Of every window [t] of tokens [n, t]: the gradient of its mean token loss in nats, as layers
    that hold it in place of the weights.

    The network stays as it is: gradients belong to a copy that shares its tensors. A yielded value
    is valid until the next one.
    """
    inside = {id(p) for layer in decoder_layers(network) for p in layer.parameters()}
    learning = _twin(
        network, {id(p): nn.Parameter(p.detach()) for p in network.parameters() if id(p) in inside}
    )
    slopes = _twin(
        network,
        {
            id(p): nn.Parameter(torch.zeros_like(p), requires_grad=False)
            for p in network.parameters()
            if id(p) in inside
        },
    )
    pairs = [
        (a, b)
        for a, b in zip(learning.parameters(), slopes.parameters(), strict=True)
        if a.requires_grad
    ]
    for window in tokens.to(network.device).split(1):
        with torch.inference_mode(False), torch.enable_grad():
            ids = window.clone()
            logits = learning(input_ids=ids, use_cache=False).logits[0, :-1].float()
            cross_entropy(logits, ids[0, 1:]).backward()
        for weight, slope in pairs:
            if weight.grad is not None:
                slope.data, weight.grad = weight.grad, None
        yield [read_layer(slopes, index) for index in range(len(decoder_layers(slopes)))]


def _twin(network: PreTrainedModel, own: dict[int, nn.Parameter]) -> PreTrainedModel:
    """The network's modules again with some parameters of its own, by id; all other tensors are
    shared.
    """
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    return copy.deepcopy(network, memo=shared | own)
