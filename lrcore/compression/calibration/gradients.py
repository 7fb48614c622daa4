"""Gradients of the loss with respect to the weights of the dense model.

They need a separate pass, which runs only if the options of a method or policy read the statistics.
The statistics, by the name of a matrix (see `statistics.Moments.values`):

* fisher [in]: `E_w sum_i G_ij^2`, the empirical Fisher information of input j (FWSVD, Hsu et al.
  2022: I-hat of a row of its W^T).
* taylor [out], for o and down [in]: `E_w` of `sum w G` over each row, or each column; signed
  (LLM-Pruner's score of a vector).
* param_first, param_second, param_mix [out], for o and down [in]: the sum over each row, or each
  column, of `|w E_w G|`, `w^2 E_w G^2` and `|w E_w G - w^2 E_w G^2 / 2|` (LLM-Pruner's scores of
  entries: the change of the loss if a weight is removed, to first and second order).
* slope [out, in], float32: `E_w G`.
* curvature [out, out], of o and down: see compression/calibration/curvature.py.
* sampled_curvature, text_curvature [out, out], of all projections and of those of routed experts:
  see compression/calibration/output_curvature.py.

G is the gradient of the mean token loss of a window, E_w the mean over the first WINDOWS
calibration windows. All statistics except slopes are float64; all are cached on disk. `PASSES`
collects them in separate passes to save memory: "slopes" holds as many numbers as the decoder's
weights, and "entries" twice as many.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from ...layers.image_tokens import targets
from ...layers.layer import ACROSS, Layer, Linear
from ...layers.linalg import column_squares, sum_float64
from ...layers.spectra import Slot
from ...layers.statistics import Moments, Need
from ...models.architectures import decoder_layers
from ...models.layers import read_layer
from ...models.load import LoadedModel
from ...system.cache import hold, trim
from ...system.errors import InputError
from ...system.files import cache_folder, cache_key
from ...system.progress import Progress, silent
from .calibrate import Calibration
from .collect import second_moment_dtype
from .curvature import curvature_moments, sum_output_gradients
from .layouts import gradient_layout
from .moment_files import Recollection, is_kept, layer_file, write_moments
from .output_curvature import SAMPLED, TEXT, OutputGradients, output_curvatures

WINDOWS = 64
FISHER = ("fisher",)  # the statistic that `fisher_information` reads
DEFAULT_READER = "the setting that reads them"
BACKWARD_COST = 3  # forward passes that take as long as one forward and backward pass
FORMAT = 2  # of the cached files; increase it when the meaning of the contents changes


def with_gradients(
    model: LoadedModel,
    calibration: Calibration,
    statistics: Collection[str],
    progress: Progress | None = None,
    read_by: str = DEFAULT_READER,
) -> Calibration:
    """Return the calibration with statistics of the gradients; instant if cached or none requested.

    read_by: the setting that needs them, for error messages.

    Each window takes a forward and a backward pass of the model. This needs as much memory as the
    decoder's weights, plus the activations of a window. Raises InputError if the layers are
    offloaded, or if a matrix is not stored as plain numbers.
    """
    if not statistics:
        return calibration
    check_dense(model, read_by)
    tokens = calibration.tokens[:WINDOWS]
    locks, recollections = [*calibration.locks], {}
    for name in _passes(statistics):
        folder = _folder(calibration, name)
        locks.append(hold(folder))
        _collect_pass(model, tokens, name, folder, progress or silent)
        recollect = partial(_collect_pass, tokens=tokens, name=name, folder=folder, progress=silent)
        recollections[folder] = Recollection(model, recollect)
    return replace(
        calibration,
        gradients=tuple(recollections),
        locks=tuple(locks),
        recollections={**calibration.recollections, **recollections},
    )


def _collect_pass(
    model: LoadedModel, tokens: Tensor, name: str, folder: Path, progress: Progress
) -> None:
    """Write the statistics of a pass, unless the folder is complete."""
    if _is_complete(model, folder, name):
        return
    dtype = second_moment_dtype(model)
    for layer, moments in enumerate(collect(model.network, tokens, progress, PASSES[name])):
        write_moments(moments, layer_file(folder, layer), dtype)
    trim()


def gradient_norms(
    model: LoadedModel,
    tokens: Tensor,
    progress: Progress | None = None,
    read_by: str = DEFAULT_READER,
) -> list[dict[str, Tensor]]:
    """Return `(E_w G^2)^{1/2}`, [out, in], of each layer and matrix on windows tokens [n, t].

    Memory and errors are as for `with_gradients`; nothing is written to disk.
    """
    check_dense(model, read_by)
    layers = collect(model.network, tokens[:WINDOWS], progress or silent, Pass((), squares))
    return [
        {name: value.sqrt() for (name, _), value in moments.values.items()} for moments in layers
    ]


def check_dense(model: LoadedModel, read_by: str = DEFAULT_READER) -> None:
    """Raise InputError if layers are offloaded or a matrix is not stored as plain numbers."""
    if model.offloaded:
        raise InputError(
            "Gradients need the complete model in memory. Load it without offload, or change "
            f"{read_by}."
        )
    if any(
        not isinstance(p, Linear)
        for i in range(len(decoder_layers(model.network)))
        for p in read_layer(model.network, i).matrices().values()
    ):
        raise InputError(
            "Gradients need a dense model; this model is compressed. Start from the dense model, "
            f"or change {read_by}."
        )


def gradient_tokens(calibration: Calibration, statistics: Collection[str]) -> float:
    """Return the time to collect the statistics, in tokens of a forward pass.

    Cached passes count 0.
    """
    missing = [
        folder
        for folder in (_folder(calibration, name) for name in _passes(statistics))
        if not all(is_kept(folder, layer) for layer in range(calibration.layers))
    ]
    return float(BACKWARD_COST * len(missing) * calibration.tokens[:WINDOWS].numel())


def _passes(statistics: Collection[str]) -> dict[str, "Pass"]:
    """Return the passes that collect these statistics."""
    return {name: kind for name, kind in PASSES.items() if set(kind.statistics) & set(statistics)}


def _folder(calibration: Calibration, name: str) -> Path:
    """Return the cache folder of a pass."""
    windows = len(calibration.tokens[:WINDOWS])
    return cache_folder() / "gradients" / cache_key(FORMAT, calibration.key, windows, name)


def _is_complete(model: LoadedModel, folder: Path, name: str) -> bool:
    network, statistics = model.network, PASSES[name].statistics
    return all(
        is_kept(folder, layer, layout=gradient_layout(network, layer, statistics))
        for layer in range(len(decoder_layers(network)))
    )


def fisher_information(
    model: LoadedModel,
    calibration: Calibration,
    matrices: Mapping[Slot, Sequence[str]],
    progress: Progress | None = None,
    read_by: str = DEFAULT_READER,
) -> dict[Slot, float]:
    """Return the mean of `E_w G_ij^2` over all weights of each slot, without biases.

    matrices: the names of the matrices of each slot; names that a layer does not have are skipped.
    Raises InputError as `with_gradients` does.
    """
    calibration = with_gradients(model, calibration, FISHER, progress, read_by)
    components: dict[int, list[str]] = {}
    for layer, component in matrices:
        components.setdefault(layer, []).append(component)
    information = {}
    for layer, layer_components in components.items():
        weights = read_layer(model.network, layer).matrices()
        values = calibration.with_gradient_statistics(Moments({}, 0), layer).values
        for component in layer_components:
            names = [name for name in matrices[layer, component] if name in weights]
            entries = sum(weights[name].weight.numel() for name in names)
            total = sum(float(values[name, "fisher"].sum()) for name in names)
            information[layer, component] = total / entries
    return information


@dataclass(frozen=True)
class Pass:
    """The statistics that a pass over the windows collects.

    of_window(layer, gradients): the values of a layer to be averaged over windows; gradients: a
    layer with gradients instead of weights. finish(layer, means): the statistics of the averages.
    outputs: whether gradients with respect to outputs are collected instead (curvature.py).
    all_outputs: the gradients with respect to the outputs of all projections that are collected
    instead (output_curvature.py).
    """

    statistics: tuple[str, ...]
    of_window: Callable[[Layer, Layer], dict[Need, Tensor]] = lambda _layer, _gradients: {}
    finish: Callable[[Layer, Mapping[Need, Tensor]], Mapping[Need, Tensor]] = lambda _, means: means
    outputs: bool = False
    all_outputs: OutputGradients | None = None


def collect(
    network: PreTrainedModel, tokens: Tensor, progress: Progress, kind: Pass
) -> Iterable[Moments]:
    """Return the statistics of each layer over windows tokens [n, t]."""
    if kind.all_outputs is not None:
        return output_curvatures(network, tokens, progress, kind.all_outputs)
    if kind.outputs:
        with sum_output_gradients(network, tokens.shape[1] - 1) as outputs:
            _averages(network, tokens, progress, kind)
        return curvature_moments(outputs, tokens.numel())
    layers = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    means = _averages(network, tokens, progress, kind)
    return [
        Moments(kind.finish(layer, layer_means), tokens.numel())
        for layer, layer_means in zip(layers, means, strict=True)
    ]


def _averages(
    network: PreTrainedModel, tokens: Tensor, progress: Progress, kind: Pass
) -> list[dict[Need, Tensor]]:
    """Return the means of `kind.of_window` over the windows, of each layer."""
    weights = [read_layer(network, index) for index in range(len(decoder_layers(network)))]
    sums: list[dict[Need, Tensor]] = [{} for _ in weights]
    for number, gradients in enumerate(window_gradients(network, tokens)):
        progress("gradients", number, len(tokens))
        for layer, gradient, layer_sums in zip(weights, gradients, sums, strict=True):
            for need, value in kind.of_window(layer, gradient).items():
                layer_sums[need] = layer_sums[need].add_(value) if need in layer_sums else value
    progress("gradients", len(tokens), len(tokens))
    return [
        {need: total / len(tokens) for need, total in layer_sums.items()} for layer_sums in sums
    ]


def vectors(layer: Layer, gradients: Layer) -> dict[Need, Tensor]:
    """Return fisher [in] and taylor [out or in] of a layer and a window.

    taylor is only of matrices whose rows or columns belong to heads or neurons.
    """
    weights = layer.matrices()
    statistics: dict[Need, Tensor] = {}
    for name, gradient in gradients.matrices().items():
        statistics[name, "fisher"] = column_squares(gradient.weight)
        if name not in ACROSS:
            continue
        product = weights[name].weight.float() * gradient.weight.float()
        statistics[name, "taylor"] = sum_float64(product, ACROSS[name])
    return statistics


def slopes(_layer: Layer, gradients: Layer) -> dict[Need, Tensor]:
    """Return the gradients of a layer and a window, [out, in] each, float32."""
    matrices = gradients.matrices().items()
    return {(name, "slope"): p.weight.to(torch.float32, copy=True) for name, p in matrices}


def squares(_layer: Layer, gradients: Layer) -> dict[Need, Tensor]:
    """Return the squared gradients of a layer and a window, [out, in] each, float32."""
    return {(name, "square"): p.weight.float() ** 2 for name, p in gradients.matrices().items()}


def entries(layer: Layer, gradients: Layer) -> dict[Need, Tensor]:
    """Return gradients and squared gradients of a layer and a window, [out, in], float32."""
    return slopes(layer, gradients) | squares(layer, gradients)


def scores(layer: Layer, means: Mapping[Need, Tensor]) -> dict[Need, Tensor]:
    """Return param_first, param_second and param_mix of a layer, [out or in] each.

    means: of `entries`. Only matrices whose rows or columns belong to heads or neurons have scores.
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
            statistics[name, f"param_{kind}"] = sum_float64(term.abs(), ACROSS[name])
    return statistics


PASSES = {
    "vectors": Pass(("fisher", "taylor"), vectors),
    "entries": Pass(("param_first", "param_second", "param_mix"), entries, scores),
    "slopes": Pass(("slope",), slopes),
    "outputs": Pass(("curvature",), outputs=True),
    "sampled": Pass((SAMPLED.statistic,), all_outputs=SAMPLED),
    "text": Pass((TEXT.statistic,), all_outputs=TEXT),
}


def window_gradients(network: PreTrainedModel, tokens: Tensor) -> Iterator[list[Layer]]:
    """Yield the gradient of the mean token loss, in nats, of each window [t] of tokens [n, t].

    A gradient is a list of layers that have the gradients instead of the weights; it is valid until
    the next one is computed. The network is unchanged: gradients are computed for a copy of its
    modules that shares the tensors.
    """
    # The weights of `trainable` require gradients; the parameters of `gradient_network` hold the
    # gradients, so that `read_layer` returns them by layer and matrix.
    inside = {id(p) for layer in decoder_layers(network) for p in layer.parameters()}
    trainable = _copy_modules(
        network, {id(p): nn.Parameter(p.detach()) for p in network.parameters() if id(p) in inside}
    )
    gradient_network = _copy_modules(
        network,
        {
            id(p): nn.Parameter(torch.zeros_like(p), requires_grad=False)
            for p in network.parameters()
            if id(p) in inside
        },
    )
    pairs = [
        (weight, slope)
        for weight, slope in zip(trainable.parameters(), gradient_network.parameters(), strict=True)
        if weight.requires_grad
    ]
    for window in tokens.to(network.device).split(1):
        with torch.inference_mode(False), torch.enable_grad():
            ids = window.clone()
            logits = trainable(input_ids=ids, use_cache=False).logits[0, :-1].float()
            cross_entropy(logits, targets(ids[0])).backward()
        for weight, slope in pairs:
            if weight.grad is not None:
                slope.data, weight.grad = weight.grad, None
        layers = range(len(decoder_layers(gradient_network)))
        yield [read_layer(gradient_network, index) for index in layers]


def _copy_modules(network: PreTrainedModel, replaced: dict[int, nn.Parameter]) -> PreTrainedModel:
    """Return a copy of the network's modules that shares all tensors but the replaced ones.

    replaced: the new parameter by the id of the original.
    """
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    return copy.deepcopy(network, memo=shared | replaced)
