"""What slicing the residual stream leaves of a decoder layer: the same components between a
narrower stream (SliceGPT).
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

COMPONENTS = ("attention", "mlp")  # in the order in which they read the stream and add to it


class StreamNorm(nn.Module):
    """x / sqrt(sum x_i^2 / width + eps): RMSNorm without a weight over a stream that was `width`
    wide before it was sliced.

    What was sliced away is taken as zero, so it counts in the mean. Halves are normed in float32,
    as in the families' own norms.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) / self.width + self.eps)).to(
            x.dtype
        )


class SlicedLayer(nn.Module):
    """A decoder layer whose components each read the stream in one basis and write it in the next:
    h <- T h + f(norm(h)).

    T [d'_out, d'_in] takes what passes by a component from its basis to the next (`attention_skip`,
    `mlp_skip`); None where both are one. Takes over the modules of a native layer under their own
    names, so that it is read and compressed as that one is.
    parts, JSON-able: the paths of the "attention" and of its and the MLP's "norms", the "feed"
    forward modules in their order, and whether the layer gives a "tuple".
    """

    def __init__(self, layer: nn.Module, parts: Mapping[str, Any]) -> None:
        super().__init__()
        for name, child in layer.named_children():
            self.add_module(name, child)
        self.parts = dict(parts)
        self.attention_skip = self.mlp_skip = None
        self._names = tuple(inspect.signature(type(layer).forward).parameters)[
            2:
        ]  # after self and the hidden states

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        for component in COMPONENTS:
            hidden_states = self.passed(component, hidden_states) + self.added(
                component, hidden_states, *args, **kwargs
            )
        return (hidden_states, None) if self.parts["tuple"] else hidden_states

    def passed(self, component: str, hidden_states: Tensor) -> Tensor:
        """What passes by a component, [b, t, d'_in] -> [b, t, d'_out]."""
        skip = getattr(self, f"{component}_skip")
        return hidden_states if skip is None else skip(hidden_states)

    def added(self, component: str, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What a component adds, [b, t, d'_in] -> [b, t, d'_out]; args and kwargs are those that
        the native layer is called with.
        """
        x = self.get_submodule(self.parts["norms"][COMPONENTS.index(component)])(hidden_states)
        if component == "attention":
            return self.get_submodule(self.parts["attention"])(
                x, **dict(zip(self._names, args, strict=False)), **kwargs
            )[0]
        for path in self.parts["feed"]:
            x = self.get_submodule(path)(x)
        return x


def resized(embedding: nn.Embedding, weight: Tensor) -> nn.Embedding:
    """An embedding of the family's own kind (with its offset or scale) that holds other rows,
    [n, d'], without copying them.
    """
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    embedding.embedding_dim = weight.shape[1]
    return embedding


def residual_parameters(layer: nn.Module) -> int:
    """Numbers in the matrices that a sliced layer has in its residual path; 0 for another layer."""
    skips = [layer.attention_skip, layer.mlp_skip] if isinstance(layer, SlicedLayer) else []
    return sum(skip.weight.numel() for skip in skips if skip is not None)


def has_residual_matrices(network: nn.Module) -> bool:
    """Whether the stream changes its basis on the way, so that it cannot be compared from one
    layer to the next.
    """
    return any(residual_parameters(module) for module in network.modules())
