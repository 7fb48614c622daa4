"""The run of a layer that was found by structure: the order of its matrices, and which of them
write to the residual stream.

A matrix writes to the stream if a change e of its output changes the output of the layer by c e, c
the same for all tokens, while all other modules return the same as before. Its output is then added
to the stream with factor c.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .architectures import architecture_of, decoder_layers
from .layers import projection_paths
from .stream import LayerStream

TOLERANCE = 0.02  # of the size of a change; numbers of 16 bits are rounded to 0.004


@torch.inference_mode()
def run_order(stream: LayerStream, index: int) -> list[list[str]]:
    """Return the matrices in the order in which a layer first runs them, by common input."""
    inputs: dict[str, Tensor] = {}  # held, so that no two of them have the same address
    with ExitStack() as stack:
        for name, module in _matrices(stream, index).items():

            def store(_module: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
                inputs.setdefault(name, args[0])

            stack.enter_context(module.register_forward_pre_hook(store))
        _output(stream, index)
    groups: dict[tuple[int, torch.Size], list[str]] = {}
    for name, x in inputs.items():
        groups.setdefault((x.data_ptr(), x.shape), []).append(name)
    return list(groups.values())


@torch.inference_mode()
def stream_factors(stream: LayerStream, index: int) -> dict[str, float]:
    """Return the factors with which outputs are added to the residual stream, by matrix.

    Matrices that do not write to the stream are left out. The first batch runs once for each matrix
    with outputs as wide as the stream.
    """
    matrices, outputs = _matrices(stream, index), dict[nn.Module, list[Any]]()
    smallest = (m for m in decoder_layers(stream.network)[index].modules() if not [*m.children()])
    recorded = {m for m in smallest if not isinstance(m, nn.Dropout)} | {*matrices.values()}

    def record(module: nn.Module, _args: Any, out: Any) -> None:
        outputs.setdefault(module, []).append(_copied(out))

    with ExitStack() as stack:
        for module in recorded:
            stack.enter_context(module.register_forward_hook(record))
        before = _output(stream, index)
    generator = torch.Generator(before.device).manual_seed(0)
    noise = torch.randn(
        before.shape, generator=generator, dtype=torch.float32, device=before.device
    )
    change = (noise * before.float().std()).to(before.dtype)
    factors: dict[str, float] = {}
    for name, module in matrices.items():
        out = outputs[module][0]
        if out.numel() != change.numel():
            continue
        changed = outputs | {module: [out + change.view_as(out)]}
        difference = (_output_from(stream, index, changed) - before).float()
        factor = float((difference * change).sum() / change.float().square().sum())
        error = float((difference - factor * change).norm() / change.float().norm())
        if error < TOLERANCE * abs(factor):
            factors[name] = factor
    return factors


def stream_before(
    stream: LayerStream, index: int, number: int, name: str, factors: Mapping[str, float]
) -> tuple[Tensor, Tensor]:
    """Return the input [..., in] of a matrix and the residual stream [b, t, d] before its output.

    factors: see `stream_factors`. The stream is the layer's input plus the outputs of the matrices
    that have written to it.
    """
    total = stream.hidden[number].clone()
    with ExitStack() as stack:
        for writer, module in _matrices(stream, index).items():
            if writer not in factors:
                continue

            def add(_module: nn.Module, _args: Any, out: Tensor, writer: str = writer) -> None:
                total.add_(out.view_as(total), alpha=factors[writer])

            stack.enter_context(module.register_forward_hook(add))
        return stream.input_of(index, number, name), total


def _matrices(stream: LayerStream, index: int) -> dict[str, nn.Module]:
    layer = decoder_layers(stream.network)[index]
    paths = projection_paths(architecture_of(stream.network), layer)
    return {name: layer.get_submodule(path) for name, path in paths.items()}


def _output(stream: LayerStream, index: int) -> Tensor:
    """Return the output of a layer for the first batch, [b, t, d]."""
    args, kwargs = stream.call(index, 0)
    out = decoder_layers(stream.network)[index](stream.hidden[0], *args, **kwargs)
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor


def _output_from(stream: LayerStream, index: int, outputs: Mapping[nn.Module, list[Any]]) -> Tensor:
    """Return the output of a layer whose modules return `outputs`, one per call."""
    with ExitStack() as stack:
        for module, values in outputs.items():
            remaining = iter(values)

            def replace(_module: nn.Module, _args: Any, out: Any, values: Any = remaining) -> Any:
                return _copied(next(values, out))

            stack.enter_context(module.register_forward_hook(replace))
        return _output(stream, index)


def _copied(out: Any) -> Any:
    """Return a copy of an output, which the layer may change in place."""
    return out.clone() if isinstance(out, Tensor) else out
