"""Errors of a compressed model by layer and component, and of its residual stream.

Every component gets the dense model's input. One pass over the decoder layers of both networks, on
held-out tokens. An error is relative and squared, `sum |x - x^|^2 / sum |x|^2`: the unit of a
spectrum's prediction `1 - energy` (A3's scores on independent tokens, without positions; MoDeGPT's
and SVD's in their own units). Scores are those that enter the softmax, at unmasked positions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..errors import InputError
from ..methods.heads import groups_left, queries_of
from ..models.architecture import Architecture
from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import clone, projection_paths, read_layer
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..precise import exact
from ..progress import Progress, silent
from ..tables import frame
from .compare import check_tokens
from .contributions import check_same, mixed
from .protocols import make_passages
from .settings import EvaluationSettings

if TYPE_CHECKING:
    import pandas as pd

COMPONENTS = ("scores", "ov", "attention", "mlp", "residual")
_SLOT = {"scores": "qk", "ov": "ov", "mlp": "mlp"}  # whose spectrum predicts the error


@dataclass(frozen=True)
class LocalErrors:
    """Relative squared errors, measured and predicted.

    errors[layer][component]: "scores", of the heads that are left; "ov", the attention's output
    under the dense scores; "attention", its output under its own scores; "mlp", the MLP's output;
    "residual", the stream after the layer, with the errors of all layers up to it. No "scores" in a
    family without torch's attention, no "mlp" in a layer of experts.
    predicted[layer][slot]: 1 - energy at the plan's ranks, for the slots "qk", "ov" and "mlp" that
    the method has. protocol: what the tokens depend on.
    """

    errors: list[dict[str, float]]
    predicted: list[dict[str, float]]
    protocol: dict[str, Any]

    def table(self) -> "pd.DataFrame":
        """One row per layer and component: layer, component, error, predicted (or None)."""
        return frame(
            [
                {
                    "layer": layer,
                    "component": name,
                    "error": own[name],
                    "predicted": self.predicted[layer].get(_SLOT.get(name, "")),
                }
                for layer, own in enumerate(self.errors)
                for name in COMPONENTS
                if name in own
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
    """Errors of every layer of `small` against `dense` on windows of the test split of `data`.

    data, settings: as in `evaluate`; 8 samples where a data set is given without `samples`.
    Raises InputError as `compare` does, where `small` is no compressed `dense`, and for a protocol
    whose rows differ in length.
    """
    progress = progress or silent
    passages = make_passages(dense, EvaluationSettings.of(data, settings, samples=8), small)
    if len({len(row) for row, _ in passages.rows}) > 1:
        raise InputError(
            f"Protocol '{passages.protocol['name']}' gives rows of different lengths; local errors "
            "need windows of one length. Use protocol 'windows'."
        )
    check_tokens(dense, small, passages.rows)
    check_same(dense, small)
    tokens = torch.stack([row for row, _ in passages.rows])
    networks = [clone(model.network) for model in (dense, small, mixed(dense, small, ("ov",)))]
    exact, drifting = (LayerStream(network, tokens) for network in networks[:2])
    total, errors = len(decoder_layers(dense.network)), []
    for index in range(total):
        progress("local errors", index, total)
        errors.append(_layer_errors(networks, index, exact))
        drifting.run(index)
        pairs = zip(exact.hidden, drifting.hidden, strict=True)
        errors[-1]["residual"] = _Ratio().add_all((a, b.to(a.device)) for a, b in pairs).value
    progress("local errors", total, total)
    return LocalErrors(errors, _predicted(small, total), passages.described(small))


class _Ratio:
    """sum |x - x^|^2 / sum |x|^2, batch by batch, in float64; 0 for 0 / 0."""

    def __init__(self) -> None:
        self._off, self._all = 0.0, 0.0

    def add(self, true: Tensor, other: Tensor) -> None:
        self._off += float(((exact(true) - exact(other)) ** 2).sum())
        self._all += float((exact(true) ** 2).sum())

    def add_all(self, pairs: Any) -> "_Ratio":
        for true, other in pairs:
            self.add(true, other)
        return self

    @property
    def value(self) -> float:
        return self._off / self._all if self._all else float(self._off > 0) and float("inf")


def _layer_errors(
    networks: list[PreTrainedModel], index: int, stream: LayerStream
) -> dict[str, float]:
    """Errors of one layer on the dense layer's input; the stream advances with the dense output.

    networks: dense, small, and dense with the OV of small.
    """
    ratios: dict[str, _Ratio] = {}
    layers = [decoder_layers(network)[index] for network in networks]
    row, device = architecture_of(networks[0]), networks[1].device
    own = [read_layer(network, index).attention for network in networks[:2]]
    left = queries_of(own[0], groups_left(*own))
    for number, hidden in enumerate(stream.hidden):
        args, kwargs = stream.call(index, number)
        with _watch(layers[0], row) as true:
            out = layers[0](hidden, *args, **kwargs)
        with _watch(layers[1], row, attention=true["attention"].to(device)) as other:
            layers[1](hidden.to(device), *_moved(args, device), **_moved(kwargs, device))
        with _watch(layers[2], row) as values:
            layers[2](hidden, *args, **_moved(kwargs, hidden.device))
        true["ov"], other["ov"] = true["attention"], values["attention"]
        if "scores" in true:
            true["scores"] = true["scores"][:, left.to(hidden.device)]
        for name in true.keys() & other.keys():
            ratios.setdefault(name, _Ratio()).add(true[name], other[name].to(hidden.device))
        stream.hidden[number] = out[0] if isinstance(out, tuple) else out
    return {name: ratio.value for name, ratio in ratios.items()}


@contextmanager
def _watch(
    layer: nn.Module, row: Architecture, attention: Tensor | None = None
) -> Iterator[dict[str, Tensor]]:
    """Records a layer's scores, where it calls torch's attention, and its components' outputs.

    attention [b, t, d]: passed on instead of the layer's own output, so that the MLP gets the dense
    model's input.
    """
    seen: dict[str, Tensor] = {}

    def note(name: str, instead: Tensor | None = None) -> Callable:
        def hook(_module: nn.Module, _args: tuple, out: Tensor) -> Tensor | None:
            seen[name] = out
            return None if instead is None else instead.view_as(out)

        return hook

    paths = projection_paths(row, layer)
    with ExitStack() as stack:
        module = layer.get_submodule(paths["o"])
        stack.callback(module.register_forward_hook(note("attention", attention)).remove)
        if "down" in paths:
            module = layer.get_submodule(paths["down"])
            stack.callback(module.register_forward_hook(note("mlp")).remove)
        stack.enter_context(_Scores(seen))
        yield seen


class _Scores(TorchFunctionMode):
    """Records the scores of every call of `scaled_dot_product_attention`."""

    ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")

    def __init__(self, seen: dict[str, Tensor]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            named = dict(zip(self.ARGUMENTS, args, strict=False))
            self._seen["scores"] = _scores(named | (kwargs or {}))
        return function(*args, **(kwargs or {}))


def _scores(call: Mapping[str, Any]) -> Tensor:
    """Scaled scores by the arguments of torch's attention, zero where masked, [b, n_q, t, t]."""
    query, key, mask, scale = call["query"], call["key"], call.get("attn_mask"), call.get("scale")
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores: Tensor = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return scores.tril() if call.get("is_causal") else scores
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    shown: Tensor = scores * seen
    return shown


def _moved(values: Any, device: torch.device) -> Any:
    """On a device; mappings are copies, into which a layer may put its keys and values."""
    if isinstance(values, Tensor):
        return values.to(device)
    if isinstance(values, Mapping):
        return {name: _moved(value, device) for name, value in values.items()}
    return tuple(_moved(value, device) for value in values) if isinstance(values, tuple) else values


def _predicted(small: LoadedModel, layers: int) -> list[dict[str, float]]:
    predicted: list[dict[str, float]] = [{} for _ in range(layers)]
    for row in small.ranks:
        if row.component in _SLOT.values():
            predicted[row.layer][row.component] = 1 - row.energy
    return predicted
