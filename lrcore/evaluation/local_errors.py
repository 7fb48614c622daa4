"""Errors of a compressed model by layer and component, and of the residual stream.

All components read the input of the dense model, on held-out tokens. Errors are relative and
squared, `sum |x - x^|^2 / sum |x|^2`, the unit of the prediction `1 - energy` of a spectrum (for
A3, scores of independent tokens without positions; MoDeGPT and SVD have different units). Scores
are the inputs of the softmax at unmasked positions.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..layers.linalg import to_float64
from ..methods.heads import query_heads_of, remaining_groups
from ..models.architecture import Architecture
from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import clone, projection_paths, read_layer
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..system.errors import InputError
from ..system.notebooks import frame
from ..system.progress import Progress, silent
from .compare import check_tokens
from .contributions import check_same_layers, mix_models
from .evaluation_settings import EvaluationSettings
from .protocols import make_passages

if TYPE_CHECKING:
    import pandas as pd

COMPONENTS = ("scores", "ov", "attention", "mlp", "residual")
_SLOT = {"scores": "qk", "ov": "ov", "mlp": "mlp"}  # the slot whose spectrum predicts the error


@dataclass(frozen=True)
class LocalErrors:
    """Relative squared errors, measured and predicted.

    errors[layer][component]: "scores", of the remaining heads; "ov", the attention output with the
    scores of the dense model; "attention", the attention output with compressed scores; "mlp", the
    MLP output; "residual", the residual stream after the layer, with the errors of all layers up to
    this layer. "scores" is missing in families without torch's attention, "mlp" in layers of
    experts.
    predicted[layer][slot]: 1 - energy at the ranks of the plan, for the slots "qk", "ov" and "mlp"
    of the method. protocol: all settings and data that the tokens depend on.
    """

    errors: list[dict[str, float]]
    predicted: list[dict[str, float]]
    protocol: dict[str, Any]

    def table(self) -> "pd.DataFrame":
        """Return a table with the columns layer, component, error and predicted (or None)."""
        return frame(
            [
                {
                    "layer": layer,
                    "component": name,
                    "error": layer_errors[name],
                    "predicted": self.predicted[layer].get(_SLOT.get(name, "")),
                }
                for layer, layer_errors in enumerate(self.errors)
                for name in COMPONENTS
                if name in layer_errors
            ]
        )


@torch.inference_mode()
def local_errors(
    dense: LoadedModel,
    small: LoadedModel,
    data: str | EvaluationSettings,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> LocalErrors:
    """Return the errors of all layers of `small` on windows of the test split of `data`.

    data, settings: as in `evaluate`; the default for `samples` is 8.
    Raises InputError like `compare`, if `small` is not a compressed `dense`, and for a protocol
    with rows of different lengths.
    """
    progress = progress or silent
    passages = make_passages(dense, EvaluationSettings.of(data, settings, samples=8), small)
    if len({len(row) for row, _ in passages.rows}) > 1:
        raise InputError(
            f"Protocol '{passages.protocol['name']}' has rows of different lengths; local errors "
            "need windows of equal length. Use protocol 'windows'."
        )
    check_tokens(dense, small, passages.rows)
    check_same_layers(dense, small)
    tokens = torch.stack([row for row, _ in passages.rows])
    networks = [clone(model.network) for model in (dense, small, mix_models(dense, small, ("ov",)))]
    dense_stream, small_stream = (LayerStream(network, tokens) for network in networks[:2])
    layers, errors = len(decoder_layers(dense.network)), []
    for index in range(layers):
        progress("local errors", index, layers)
        errors.append(_layer_errors(networks, index, dense_stream))
        small_stream.run(index)
        pairs = zip(dense_stream.hidden, small_stream.hidden, strict=True)
        errors[-1]["residual"] = _Ratio().add_all((a, b.to(a.device)) for a, b in pairs).value
    progress("local errors", layers, layers)
    return LocalErrors(errors, _predicted(small, layers), passages.protocol_for(small))


class _Ratio:
    """Running sum |x - x^|^2 / sum |x|^2 over batches, in float64; 0 for 0 / 0."""

    def __init__(self) -> None:
        self._squared_error, self._squared_norm = 0.0, 0.0

    def add(self, expected: Tensor, actual: Tensor) -> None:
        self._squared_error += float(((to_float64(expected) - to_float64(actual)) ** 2).sum())
        self._squared_norm += float((to_float64(expected) ** 2).sum())

    def add_all(self, pairs: Any) -> "_Ratio":
        for expected, actual in pairs:
            self.add(expected, actual)
        return self

    @property
    def value(self) -> float:
        if self._squared_norm:
            return self._squared_error / self._squared_norm
        return math.inf if self._squared_error > 0 else 0.0


def _layer_errors(
    networks: list[PreTrainedModel], index: int, stream: LayerStream
) -> dict[str, float]:
    """Return the errors of a layer, and advance the stream with the output of the dense layer.

    networks: dense, small, and dense with the OV of small.
    """
    ratios: dict[str, _Ratio] = {}
    layers = [decoder_layers(network)[index] for network in networks]
    architecture, device = architecture_of(networks[0]), networks[1].device
    attentions = [read_layer(network, index).attention for network in networks[:2]]
    query_heads = query_heads_of(attentions[0], remaining_groups(*attentions))
    for batch_index, hidden in enumerate(stream.hidden):
        args, kwargs = stream.call(index, batch_index)
        with _record(layers[0], architecture) as expected:
            output = layers[0](hidden, *args, **kwargs)
        attended = expected["attention"].to(device) if "attention" in expected else None
        with _record(layers[1], architecture, attention=attended) as actual:
            layers[1](hidden.to(device), *_to_device(args, device), **_to_device(kwargs, device))
        with _record(layers[2], architecture) as values:
            layers[2](hidden, *args, **_to_device(kwargs, hidden.device))
        if attended is not None:
            expected["ov"], actual["ov"] = expected["attention"], values["attention"]
        if "scores" in expected:
            expected["scores"] = expected["scores"][:, query_heads.to(hidden.device)]
        for name in expected.keys() & actual.keys():
            ratios.setdefault(name, _Ratio()).add(expected[name], actual[name].to(hidden.device))
        stream.hidden[batch_index] = output[0] if isinstance(output, tuple) else output
    return {name: ratio.value for name, ratio in ratios.items()}


@contextmanager
def _record(
    layer: nn.Module, architecture: Architecture, attention: Tensor | None = None
) -> Iterator[dict[str, Tensor]]:
    """Record the component outputs of a layer, and the scores if it calls torch's attention.

    attention [b, t, d]: replaces the attention output, so that the MLP reads the input of the dense
    model.
    """
    recorded: dict[str, Tensor] = {}

    def recorder(name: str, replacement: Tensor | None = None) -> Callable:
        def hook(_module: nn.Module, _args: tuple, out: Tensor) -> Tensor | None:
            recorded[name] = out
            return None if replacement is None else replacement.view_as(out)

        return hook

    paths = projection_paths(architecture, layer)
    with ExitStack() as stack:
        if "o" in paths:
            module = layer.get_submodule(paths["o"])
            stack.callback(module.register_forward_hook(recorder("attention", attention)).remove)
        if "down" in paths:
            module = layer.get_submodule(paths["down"])
            stack.callback(module.register_forward_hook(recorder("mlp")).remove)
        stack.enter_context(_Scores(recorded))
        yield recorded


class _Scores(TorchFunctionMode):
    """Recorder of the scores of `scaled_dot_product_attention`."""

    ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")

    def __init__(self, recorded: dict[str, Tensor]) -> None:
        super().__init__()
        self._recorded = recorded

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            arguments = dict(zip(self.ARGUMENTS, args, strict=False))
            self._recorded["scores"] = _scores(arguments | (kwargs or {}))
        return function(*args, **(kwargs or {}))


def _scores(arguments: Mapping[str, Any]) -> Tensor:
    """Return the scaled scores of an attention call, 0 if masked, [b, n_q, t, t]."""
    query, key, mask, scale = (
        arguments["query"],
        arguments["key"],
        arguments.get("attn_mask"),
        arguments.get("scale"),
    )
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores: Tensor = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return scores.tril() if arguments.get("is_causal") else scores
    is_unmasked = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    masked_scores: Tensor = scores * is_unmasked
    return masked_scores


def _to_device(values: Any, device: torch.device) -> Any:
    """Copy values to a device. Mappings are new, so that layers can store keys and values."""
    if isinstance(values, Tensor):
        return values.to(device)
    if isinstance(values, Mapping):
        return {name: _to_device(value, device) for name, value in values.items()}
    return (
        tuple(_to_device(value, device) for value in values)
        if isinstance(values, tuple)
        else values
    )


def _predicted(small: LoadedModel, layers: int) -> list[dict[str, float]]:
    predicted: list[dict[str, float]] = [{} for _ in range(layers)]
    for row in small.ranks:
        if row.component in _SLOT.values():
            predicted[row.layer][row.component] = 1 - row.energy
    return predicted
