"""Gradients of the loss by the weights of the dense model: a pass of its own, made only where a
method's options read what it gives.

Statistics, by the name of a matrix (see `statistics.Moments.values`):

* fisher [in]: `E_w sum_i G_ij^2`, the empirical Fisher information of input j (FWSVD, Hsu et al.
  2022: I-hat of a row of its W^T).
* taylor [out], of o and down [in]: `E_w` of `sum w G` over every row, or every column; signed
  (LLM-Pruner's score of a vector).
* param_first, param_second, param_mix [out], of o and down [in]: the sum over every row, or every
  column, of `|w E_w G|`, `w^2 E_w G^2` and `|w E_w G - w^2 E_w G^2 / 2|` (LLM-Pruner's scores of
  entries: what the loss changes by without one weight, to first and second order).
* slope [out, in], float32: `E_w G`.

* curvature [out, out], of o and down: see calibration/curvature.py.

G is the gradient of the mean token loss of one window, E_w the mean over the first WINDOWS
calibration windows. Float64 but for slopes, and kept on disk. Slopes take the memory of the
decoder's weights once more and entries twice, so `PASSES` collects them apart.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from ..cache import hold, trim
from ..errors import InputError
from ..files import cache_folder, cache_key
from ..image_tokens import targets
from ..layer import ACROSS, Layer, Linear
from ..linalg import column_squares
from ..models.architectures import decoder_layers
from ..models.layers import read_layer
from ..models.load import LoadedModel
from ..precise import exact_sum
from ..progress import Progress, silent
from ..spectra import Slot
from ..statistics import Moments, Need
from . import curvature
from .calibrate import Calibration
from .layouts import gradient_layout
from .moment_files import is_kept, layer_file, write_moments
from .remaking import Again

WINDOWS = 64
FISHER = ("fisher",)  # what `fisher_information` reads
READER = "what reads them"
BACKWARD = 3  # forward and backward take as long as so many forward passes
FORMAT = 2  # of the cached files; raise it whenever what is collected changes its meaning


def with_gradients(
    model: LoadedModel,
    calibration: Calibration,
    statistics: Collection[str],
    progress: Progress | None = None,
    read_by: str = READER,
) -> Calibration:
    """The calibration with statistics of the gradients in its moments; instant where they are on
    disk already, or where none is asked for. read_by: the setting that needs them, for a refusal.

    One forward and one backward pass of the whole model per window: it takes the memory of the
    decoder's weights once more, and of one window's activations. Raises InputError for a model
    whose layers are offloaded, or whose matrices are not plain.
    """
    if not statistics:
        return calibration
    check_dense(model, read_by)
    tokens, held, again = calibration.tokens[:WINDOWS], [*calibration.held], {}
    for name in _passes(statistics):
        folder = _folder(calibration, name)
        held.append(hold(folder))
        _keep(model, tokens, name, folder, progress or silent)
        once_more = partial(_keep, tokens=tokens, name=name, folder=folder, progress=silent)
        again[folder] = Again(model, once_more)
    known = {**calibration.again, **again}
    return replace(calibration, gradients=tuple(again), held=tuple(held), again=known)


def _keep(model: LoadedModel, tokens: Tensor, name: str, folder: Path, progress: Progress) -> None:
    """Write what a pass collects, where it is not whole in the folder."""
    if _is_whole(model, folder, name):
        return
    for layer, moments in enumerate(collect(model.network, tokens, progress, PASSES[name])):
        write_moments(moments, layer_file(folder, layer))
    trim()


def gradient_norms(
    model: LoadedModel,
    tokens: Tensor,
    progress: Progress | None = None,
    read_by: str = READER,
) -> list[dict[str, Tensor]]:
    """Of every layer and matrix: `(E_w G^2)^{1/2}`, [out, in], on windows tokens [n, t].

    Memory and errors as `with_gradients`; nothing is kept on disk.
    """
    check_dense(model, read_by)
    found = collect(model.network, tokens[:WINDOWS], progress or silent, Pass((), squares))
    return [
        {name: value.sqrt() for (name, _), value in moments.values.items()} for moments in found
    ]


def check_dense(model: LoadedModel, read_by: str = READER) -> None:
    """Raises InputError for a model whose layers are offloaded, or whose matrices are not plain."""
    if model.offloaded:
        raise InputError(
            "Gradients are of the whole model at once. Load it without offload, or change "
            f"{read_by}."
        )
    if any(
        not isinstance(p, Linear)
        for i in range(len(decoder_layers(model.network)))
        for p in read_layer(model.network, i).matrices().values()
    ):
        raise InputError(
            "Gradients are of a dense model; this one is compressed already. Start from the dense "
            f"one, or change {read_by}."
        )


def tokens_run(calibration: Calibration, statistics: Collection[str]) -> float:
    """The tokens whose forward passes would take as long as collecting what is not on disk."""
    lacking = [
        folder
        for folder in (_folder(calibration, name) for name in _passes(statistics))
        if not all(is_kept(folder, layer) for layer in range(calibration.layers))
    ]
    return float(BACKWARD * len(lacking) * calibration.tokens[:WINDOWS].numel())


def _passes(statistics: Collection[str]) -> dict[str, "Pass"]:
    """The passes that collect these statistics."""
    return {name: own for name, own in PASSES.items() if set(own.statistics) & set(statistics)}


def _folder(calibration: Calibration, name: str) -> Path:
    """Where a pass keeps what it collects."""
    windows = len(calibration.tokens[:WINDOWS])
    return cache_folder() / "gradients" / cache_key(FORMAT, calibration.key, windows, name)


def _is_whole(model: LoadedModel, folder: Path, name: str) -> bool:
    network, own = model.network, PASSES[name].statistics
    return all(
        is_kept(folder, layer, layout=gradient_layout(network, layer, own))
        for layer in range(len(decoder_layers(network)))
    )


def fisher_information(
    model: LoadedModel,
    calibration: Calibration,
    matrices: Mapping[Slot, Sequence[str]],
    progress: Progress | None = None,
    read_by: str = READER,
) -> dict[Slot, float]:
    """Of every slot: the mean of `E_w G_ij^2` over all entries of its matrices, without their
    biases.

    matrices: the names of the matrices of each slot; those that a layer lacks are skipped.

    Raises InputError as `with_gradients` does, which collects the gradients.
    """
    found = with_gradients(model, calibration, FISHER, progress, read_by)
    by_layer: dict[int, list[str]] = {}
    for layer, name in matrices:
        by_layer.setdefault(layer, []).append(name)
    information = {}
    for layer, names in by_layer.items():
        weights = read_layer(model.network, layer).matrices()
        values = found.joined(Moments({}, 0), layer).values
        for name in names:
            own = [one for one in matrices[layer, name] if one in weights]
            entries = sum(weights[one].weight.numel() for one in own)
            total = sum(float(values[one, "fisher"].sum()) for one in own)
            information[layer, name] = total / entries
    return information


@dataclass(frozen=True)
class Pass:
    """What a pass over the windows collects.

    of_window(layer, slope): what is averaged over windows, of one layer; slope: the gradients in
    place of the weights. finish(layer, means): its statistics. outputs: whether the gradients by
    the outputs of projections are collected instead, see calibration/curvature.py.
    """

    statistics: tuple[str, ...]
    of_window: Callable[[Layer, Layer], dict[Need, Tensor]] = lambda _layer, _slope: {}
    finish: Callable[[Layer, Mapping[Need, Tensor]], Mapping[Need, Tensor]] = lambda _, means: means
    outputs: bool = False


def collect(
    network: PreTrainedModel, tokens: Tensor, progress: Progress, kind: Pass
) -> list[Moments]:
    """The statistics of every layer over windows tokens [n, t]."""
    if kind.outputs:
        with curvature.watched(network, tokens.shape[1] - 1) as outputs:
            _averages(network, tokens, progress, kind)
        return curvature.moments_of(outputs, tokens.numel())
    weights = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    means = _averages(network, tokens, progress, kind)
    return [
        Moments(kind.finish(layer, own), tokens.numel())
        for layer, own in zip(weights, means, strict=True)
    ]


def _averages(
    network: PreTrainedModel, tokens: Tensor, progress: Progress, kind: Pass
) -> list[dict[Need, Tensor]]:
    """The means of `kind.of_window` over the windows, of every layer."""
    weights = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    sums: list[dict[Need, Tensor]] = [{} for _ in weights]
    for number, slopes in enumerate(window_gradients(network, tokens)):
        progress("gradients", number, len(tokens))
        for layer, slope, own in zip(weights, slopes, sums, strict=True):
            for need, value in kind.of_window(layer, slope).items():
                own[need] = own[need].add_(value) if need in own else value
    progress("gradients", len(tokens), len(tokens))
    return [{need: value / len(tokens) for need, value in own.items()} for own in sums]


def vectors(layer: Layer, slope: Layer) -> dict[Need, Tensor]:
    """fisher [in] and taylor [out or in] of one layer and one window; taylor of the matrices whose
    rows or columns are of heads or neurons.
    """
    weights = layer.matrices()
    statistics: dict[Need, Tensor] = {}
    for name, projection in slope.matrices().items():
        statistics[name, "fisher"] = column_squares(projection.weight)
        if name not in ACROSS:
            continue
        product = weights[name].weight.float() * projection.weight.float()
        statistics[name, "taylor"] = exact_sum(product, ACROSS[name])
    return statistics


def slopes(_layer: Layer, slope: Layer) -> dict[Need, Tensor]:
    """The gradients of one layer and one window, [out, in] each, float32."""
    matrices = slope.matrices().items()
    return {(name, "slope"): p.weight.to(torch.float32, copy=True) for name, p in matrices}


def squares(_layer: Layer, slope: Layer) -> dict[Need, Tensor]:
    """The squared gradients of one layer and one window, [out, in] each, float32."""
    return {(name, "square"): p.weight.float() ** 2 for name, p in slope.matrices().items()}


def entries(layer: Layer, slope: Layer) -> dict[Need, Tensor]:
    """The gradients of one layer and one window and their squares, [out, in] each, float32."""
    return slopes(layer, slope) | squares(layer, slope)


def scores(layer: Layer, means: Mapping[Need, Tensor]) -> dict[Need, Tensor]:
    """param_first, param_second and param_mix of one layer, [out or in] each, from the means of
    `entries`; of the matrices whose rows or columns are of heads or neurons.
    """
    statistics: dict[Need, Tensor] = {}
    for name, projection in layer.matrices().items():
        if name not in ACROSS:
            continue
        weight = projection.weight.float()
        first = weight * means[name, "slope"]
        second = weight**2 * means[name, "square"]
        terms = {"first": first, "second": second, "mix": first - second / 2}
        for kind, term in terms.items():
            statistics[name, f"param_{kind}"] = exact_sum(term.abs(), ACROSS[name])
    return statistics


PASSES = {
    "vectors": Pass(("fisher", "taylor"), vectors),
    "entries": Pass(("param_first", "param_second", "param_mix"), entries, scores),
    "slopes": Pass(("slope",), slopes),
    "outputs": Pass(("curvature",), outputs=True),
}


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
            cross_entropy(logits, targets(ids[0])).backward()
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
