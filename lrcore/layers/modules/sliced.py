"""Modules of a sliced network: decoder layers on a narrower residual stream (SliceGPT)."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

COMPONENTS = ("attention", "mlp")  # in forward order


class StreamNorm(nn.Module):
    """RMSNorm without a weight, x / sqrt(sum x_i^2 / width + eps), over a sliced stream.

    width: of the stream before slicing, since sliced entries count as zeros in the mean. Half
    precision is computed in float32, as in the families' norms.
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

    T [d'_out, d'_in] changes the basis on the residual path (`attention_skip`, `mlp_skip`); None if
    the basis does not change. The native layer's modules keep their names, so reading and
    compressing work as for a native layer.
    parts, JSON-able: the path of the "attention", the paths of the "norms" of attention and MLP and
    of the "feed" forward modules in order; "tuple": True if the layer returns a tuple.
    """

    def __init__(self, layer: nn.Module, parts: Mapping[str, Any]) -> None:
        nn.Module.__init__(self)  # skip the family's __init__, see `subclass_of_native`
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
        """[b, t, d'_in] -> [b, t, d'_out], called like the native layer."""
        for component in COMPONENTS:
            skip = self.residual(component, hidden_states)
            hidden_states = skip + self.component_output(component, hidden_states, *args, **kwargs)
        return (hidden_states, None) if self.parts["tuple"] else hidden_states

    def residual(self, component: str, hidden_states: Tensor) -> Tensor:
        """Return the residual path parallel to a component, [b, t, d'_in] -> [b, t, d'_out]."""
        skip = getattr(self, f"{component}_skip")
        out: Tensor = hidden_states if skip is None else skip(hidden_states)
        return out

    def component_output(
        self, component: str, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the output of a component, [b, t, d'_in] -> [b, t, d'_out].

        args, kwargs: the arguments of the native layer.
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


def resize_embedding(embedding: nn.Embedding, weight: Tensor) -> nn.Embedding:
    """Return the family's embedding with other rows [n, d'], not copied; offset and scale stay."""
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    embedding.embedding_dim = weight.shape[1]
    return embedding


def residual_parameters(layer: nn.Module) -> int:
    """Return how many numbers the residual matrices of a sliced layer have; 0 for other layers."""
    skips = [layer.attention_skip, layer.mlp_skip] if isinstance(layer, SlicedLayer) else []
    return sum(skip.weight.numel() for skip in skips if skip is not None)


def has_residual_matrices(network: nn.Module) -> bool:
    """Return True if the residual stream changes the basis, so streams of layers are not
    comparable.
    """
    return any(residual_parameters(module) for module in network.modules())
