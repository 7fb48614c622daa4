"""Curvature of the loss with respect to the outputs of the o and down projections.

`G = E[g g^T]` is the gradient factor of K-FAC. g is the gradient of the sum of a window's token
losses, in nats, with respect to the projection's output at one token; E is the mean over tokens.
This is the empirical Fisher information: if tokens are independent, a change dy of the output
raises the loss by `E (g . dy)^2 / 2` per token.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.statistics import Moments, SecondMomentSum, at_least_float32
from ...models.architectures import architecture_of, decoder_layers
from ...models.layers import projection_paths

OUTPUTS = ("o", "down")
Sums = Sequence[dict[str, SecondMomentSum]]


@contextmanager
def sum_output_gradients(network: PreTrainedModel, scale: float) -> Iterator[Sums]:
    """Add `scale` g of each backward pass inside the block to sums, by layer and projection.

    The backward pass may run on a copy of the network that was made inside the block.
    """
    row, handles = architecture_of(network), []
    sums: Sums = [{} for _ in decoder_layers(network)]
    for layer, layer_sums in zip(decoder_layers(network), sums, strict=True):
        paths = projection_paths(row, layer)
        for name in OUTPUTS:
            if name in paths:
                layer_sums[name] = SecondMomentSum()
                hook = _gradient_hook(layer_sums[name], scale)
                handles.append(layer.get_submodule(paths[name]).register_forward_hook(hook))
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()


def _gradient_hook(
    total: SecondMomentSum, scale: float
) -> Callable[[nn.Module, object, Tensor], None]:
    """Return a forward hook that adds the gradient of the module's output to a sum."""

    def add(gradient: Tensor) -> None:
        total.add(at_least_float32(gradient.detach().flatten(0, -2)) * scale)

    def hook(_module: nn.Module, _args: object, out: Tensor) -> None:
        out.register_hook(add)

    return hook


def curvature_moments(sums: Sums, tokens: int) -> list[Moments]:
    """Return the curvature [d, d] of each layer's outputs, the mean over `tokens` tokens."""
    return [
        Moments(
            {(name, "curvature"): total.total() / tokens for name, total in layer_sums.items()},
            tokens,
        )
        for layer_sums in sums
    ]
