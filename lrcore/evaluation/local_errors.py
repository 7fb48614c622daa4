"""Where a compressed model errs: each component fed what the dense model feeds it, and the residual
stream as it drifts.

One pass over the decoder layers of both networks, on held-out tokens. An error is relative and
squared, `sum |x - x^|^2 / sum |x|^2`:
the unit in which a spectrum predicts it, `1 - energy` (A3's scores on independent tokens, without
positions; MoDeGPT's and SVD's in their own units). Scores are those that enter the softmax, over
the positions that the mask leaves.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..models.architectures import Architecture, architecture_of, decoder_layers
from ..models.layers import clone, projection_paths
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..progress import Progress, silent
from ..tables import frame
from .compare import check_tokens
from .contributions import check_same, mixed
from .protocols import EvaluationSettings, make_passages

if TYPE_CHECKING:
    import pandas as pd

COMPONENTS = ("scores", "ov", "attention", "mlp", "residual")
_SLOT = {"scores": "qk", "ov": "ov", "mlp": "mlp"}  # whose spectrum predicts the error


@dataclass(frozen=True)
class LocalErrors:
    """errors[layer][component]: "scores"; "ov", the output of the attention under the dense scores;
    "attention", under its own; "mlp", the output of the MLP; "residual", the stream after the
    layer, with the errors of all layers up to it. No "scores" where a family does not use torch's
    attention, no "mlp" where experts take its place. predicted[layer][slot]: 1 - energy of the
    plan's ranks, only for the slots "qk", "ov", "mlp" that the method solves. protocol: the tokens.
    """

    errors: list[dict[str, float]]
    predicted: list[dict[str, float]]
    protocol: dict[str, Any]

    def table(self) -> "pd.DataFrame":
        """One row per layer and component: layer, component, error, predicted (None where the
        method's spectra say nothing of it).
        """
        return frame(
            [
                {
                    "layer": layer,
                    "component": name,
                    "error": own[name],
                    "predicted": self.predicted[layer].get(_SLOT.get(name)),
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
    data: str,
    samples: int = 8,
    seq_len: int | None = None,
    progress: Progress | None = None,
) -> LocalErrors:
    """Errors of every layer of `small` against `dense` on the first `samples` windows of the test
    split of `data`.

    Raises InputError where the data set cannot be read, or the models do not read the same tokens
    or differ in their layers.
    """
    progress = progress or silent
    passages = make_passages(dense, EvaluationSettings(data, samples, seq_len))
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
    return LocalErrors(errors, _predicted(small, total), passages.protocol)


class _Ratio:
    """sum |x - x^|^2 / sum |x|^2, batch by batch, in float64; 0 for 0 / 0."""

    def __init__(self) -> None:
        self._off, self._all = 0.0, 0.0

    def add(self, true: Tensor, other: Tensor) -> None:
        self._off += float(((true.double() - other.double()) ** 2).sum())
        self._all += float((true.double() ** 2).sum())

    def add_all(self, pairs: Any) -> "_Ratio":
        for true, other in pairs:
            self.add(true, other)
        return self

    @property
    def value(self) -> float:
        return self._off / self._all if self._all else float(self._off > 0) and float("inf")


def _layer_errors(networks: list[nn.Module], index: int, stream: LayerStream) -> dict[str, float]:
    """The layer of the dense network, of the small one, and of the dense one with small's OV, all
    on the dense layer's input.

    The stream goes on with the dense output.
    """
    ratios: dict[str, _Ratio] = {}
    layers = [decoder_layers(network)[index] for network in networks]
    row, device = architecture_of(networks[0]), networks[1].device
    for number, hidden in enumerate(stream.hidden):
        args, kwargs = stream.call(index, number)
        with _watch(layers[0], row) as true:
            out = layers[0](hidden, *args, **kwargs)
        with _watch(layers[1], row, attention=true["attention"].to(device)) as other:
            layers[1](hidden.to(device), *_moved(args, device), **_moved(kwargs, device))
        with _watch(layers[2], row) as values:
            layers[2](hidden, *args, **kwargs)
        true["ov"], other["ov"] = true["attention"], values["attention"]
        for name in true.keys() & other.keys():
            ratios.setdefault(name, _Ratio()).add(true[name], other[name].to(hidden.device))
        stream.hidden[number] = out[0] if isinstance(out, tuple) else out
    return {name: ratio.value for name, ratio in ratios.items()}


@contextmanager
def _watch(
    layer: nn.Module, row: Architecture, attention: Tensor | None = None
) -> Iterator[dict[str, Tensor]]:
    """What a layer computes inside: its scores where it calls torch's attention, and the outputs of
    its output and down projections.

    attention: given on instead of the layer's own, so that the MLP reads what the dense one reads.
    """
    seen: dict[str, Tensor] = {}

    def note(name: str, instead: Tensor | None = None) -> Callable:
        def hook(_module: nn.Module, _args: tuple, out: Tensor) -> Tensor | None:
            seen[name] = out
            return None if instead is None else instead.view_as(out)

        return hook

    paths = projection_paths(row, layer)
    with ExitStack() as stack:
        stack.callback(
            layer.get_submodule(paths["o"])
            .register_forward_hook(note("attention", attention))
            .remove
        )
        if "down" in paths:
            stack.callback(
                layer.get_submodule(paths["down"]).register_forward_hook(note("mlp")).remove
            )
        stack.enter_context(_Scores(seen))
        yield seen


class _Scores(TorchFunctionMode):
    """Notes the scores of every call of torch's attention, whichever family and head sizes it is
    called for.
    """

    def __init__(self, seen: dict[str, Tensor]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            self._seen["scores"] = _scores(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _scores(
    query: Tensor,
    key: Tensor,
    _value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The scaled products of the positions that may be seen, zero elsewhere. [b, n_q, t, t]."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is None:
        return scores.tril() if is_causal else scores
    seen = (
        attn_mask
        if attn_mask.dtype == torch.bool
        else attn_mask > torch.finfo(attn_mask.dtype).min / 2
    )
    return scores * seen


def _moved(values: Any, device: torch.device) -> Any:
    if isinstance(values, Tensor):
        return values.to(device)
    if isinstance(values, dict):
        return {name: _moved(value, device) for name, value in values.items()}
    return tuple(_moved(value, device) for value in values) if isinstance(values, tuple) else values


def _predicted(small: LoadedModel, layers: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{} for _ in range(layers)]
    for row in small.ranks:
        if row.component in _SLOT.values():
            found[row.layer][row.component] = 1 - row.energy
    return found
