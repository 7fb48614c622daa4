"""Modules of a sliced network: decoder layers on a narrower residual stream (SliceGPT)."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

COMPONENTS = ("attention", "mlp")  # in forward order


class StreamNorm(nn.Module):
    """RMSNorm without a weight, x / sqrt(sum x_i^2 / width + eps), over a sliced stream.

    width: that of the stream before slicing, since sliced entries count in the mean as zeros. Half
    precision is computed in float32, as in the families' own norms.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., d'] -> [..., d']."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().sum(-1, keepdim=True) / self.width + self.eps)
        return (wide * scale).to(x.dtype)


class SlicedLayer(nn.Module):
    """A decoder layer of a sliced network: h <- T h + f(norm(h)) for attention, then for the MLP.

    T [d'_out, d'_in] changes the basis on the residual path (`attention_skip`, `mlp_skip`); None
    where the basis stays. The native layer's modules keep their names, so that reading and
    compressing work as for a native layer.
    parts, JSON-able: the paths of the "attention", of the "norms" of attention and MLP, and of the
    "feed" forward modules in order; whether the layer returns a "tuple".
    """

    def __init__(self, layer: nn.Module, parts: Mapping[str, Any]) -> None:
        nn.Module.__init__(self)  # and no family's layer, see `standing_for`
        for name, child in layer.named_children():
            self.add_module(name, child)
        self.parts = dict(parts)
        self.attention_skip: nn.Linear | None = None
        self.mlp_skip: nn.Linear | None = None
        # the layer's positional arguments after self and the hidden states
        self._names = tuple(inspect.signature(type(layer).forward).parameters)[2:]

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        """[b, t, d'_in] -> [b, t, d'_out], called as the native layer."""
        for component in COMPONENTS:
            skip = self.passed(component, hidden_states)
            hidden_states = skip + self.added(component, hidden_states, *args, **kwargs)
        return (hidden_states, None) if self.parts["tuple"] else hidden_states

    def passed(self, component: str, hidden_states: Tensor) -> Tensor:
        """The residual path beside a component, [b, t, d'_in] -> [b, t, d'_out]."""
        skip = getattr(self, f"{component}_skip")
        out: Tensor = hidden_states if skip is None else skip(hidden_states)
        return out

    def added(self, component: str, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output of a component, [b, t, d'_in] -> [b, t, d'_out].

        args, kwargs: those that the native layer is called with.
        """
        norm = self.get_submodule(self.parts["norms"][COMPONENTS.index(component)])
        x: Tensor = norm(hidden_states)
        if component == "attention":
            named = dict(zip(self._names, args, strict=False))
            out: Tensor = self.get_submodule(self.parts["attention"])(x, **named, **kwargs)[0]
            return out
        for path in self.parts["feed"]:
            x = self.get_submodule(path)(x)
        return x


def resized(embedding: nn.Embedding, weight: Tensor) -> nn.Embedding:
    """The family's own embedding (with its offset or scale) on other rows [n, d'], not copied."""
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    embedding.embedding_dim = weight.shape[1]
    return embedding


def residual_parameters(layer: nn.Module) -> int:
    """Numbers in the matrices on the residual path of a sliced layer; 0 for another layer."""
    skips = [layer.attention_skip, layer.mlp_skip] if isinstance(layer, SlicedLayer) else []
    return sum(skip.weight.numel() for skip in skips if skip is not None)


def has_residual_matrices(network: nn.Module) -> bool:
    """Whether the residual stream changes its basis, so layers' streams cannot be compared."""
    return any(residual_parameters(module) for module in network.modules())
