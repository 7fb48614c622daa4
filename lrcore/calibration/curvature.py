"""Curvature of the loss by the outputs of the output and down projections: the factor of K-FAC
that gradients give, `G = E[g g^T]`.

g is the gradient of the sum of a window's token losses in nats by the projection's output at one
token, E the mean over tokens: the empirical Fisher information, so that `E (g . dy)^2 / 2` is the
rise of the loss per token from a change dy of the output, where tokens are independent.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import projection_paths
from ..statistics import Moments, SecondSum, at_least_float32

OUTPUTS = ("o", "down")
Sums = Sequence[dict[str, SecondSum]]


@contextmanager
def watched(network: PreTrainedModel, scale: float) -> Iterator[Sums]:
    """Inside, a backward pass through the network, or through a copy made inside, adds what it
    gives of every layer's outputs, times scale.
    """
    row, handles = architecture_of(network), []
    sums: Sums = [{} for _ in decoder_layers(network)]
    for layer, own in zip(decoder_layers(network), sums, strict=True):
        paths = projection_paths(row, layer)
        for name in OUTPUTS:
            if name in paths:
                own[name] = SecondSum()
                note = _note(own[name], scale)
                handles.append(layer.get_submodule(paths[name]).register_forward_hook(note))
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()


def _note(total: SecondSum, scale: float) -> Callable[[nn.Module, object, Tensor], None]:
    """A forward hook by which the gradient of the module's output is added to a sum."""

    def add(slope: Tensor) -> None:
        total.add(at_least_float32(slope.detach().flatten(0, -2)) * scale)

    def note(_module: nn.Module, _args: object, out: Tensor) -> None:
        out.register_hook(add)

    return note


def moments_of(sums: Sums, tokens: int) -> list[Moments]:
    """The curvature [d, d] of every layer's outputs, the mean over so many tokens."""
    return [
        Moments({(name, "curvature"): one.total() / tokens for name, one in own.items()}, tokens)
        for own in sums
    ]
