"""Routed experts and routers of a network: temporary and permanent selection of experts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....models.architecture import module_at
from ....models.architectures import architecture_of, decoder_layers, text_config
from ....models.layers import experts_path, experts_per_token
from ....models.mixture_families import EXPERT_COUNTS


@dataclass(frozen=True, eq=False)
class Mixture:
    """The mixture of experts of a layer: block, router and stacked experts."""

    block: nn.Module
    router: nn.Module
    experts: nn.Module

    @property
    def active(self) -> int:
        """Number of experts that a token is routed to."""
        return experts_per_token(self.router)

    def rows(self) -> dict[tuple[nn.Module, str], Tensor]:
        """Return the router's tensors [experts, ...] by their module and name.

        Some blocks hold the bias of their router (MiniMax-M2, AFMoE).
        """
        rows: dict[tuple[nn.Module, str], Tensor] = {}
        count = len(self.experts.down_proj)  # type: ignore[arg-type]
        for module in (self.block, *self.router.modules()):
            tensors = [
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            ]
            rows |= {(module, name): tensor for name, tensor in tensors if count in tensor.shape}
        return rows


def mixture_of(network: PreTrainedModel, index: int) -> Mixture | None:
    """Return the mixture of decoder layer `index`, or None."""
    row, layer = architecture_of(network), decoder_layers(network)[index]
    experts = module_at(layer, experts_path(row)) if row.experts else None
    if experts is None:
        return None
    return Mixture(layer.get_submodule(row.mlp), layer.get_submodule(row.router), experts)


def expert_count(network: PreTrainedModel) -> int:
    """Return the number of routed experts per layer with a mixture; 0 without experts."""
    config = text_config(network)
    if not architecture_of(network).experts:
        return 0
    return int(next(getattr(config, name) for name in EXPERT_COUNTS if hasattr(config, name)))


def expert_groups(network: PreTrainedModel) -> int:
    """Return the number of groups of experts that a router selects first (DeepSeek-V2), or 1."""
    return int(getattr(text_config(network), "n_group", None) or 1)


def _replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    parameter = isinstance(getattr(module, name), nn.Parameter)
    setattr(module, name, nn.Parameter(tensor, requires_grad=False) if parameter else tensor)


def _select(tensor: Tensor, retained: Sequence[int], count: int) -> Tensor:
    """Return the entries of the retained experts of a tensor with an entry per expert."""
    dim = list(tensor.shape).index(count)
    return tensor.index_select(dim, torch.tensor(retained, device=tensor.device))


@contextmanager
def route_to(
    mixture: Mixture, retained: Sequence[int], rows: Mapping[tuple[nn.Module, str], Tensor]
) -> Iterator[None]:
    """Route tokens only to the retained experts inside the block; no expert is moved.

    rows: the router's tensors [experts, ...] of all experts, see `Mixture.rows`.
    """
    original, count = mixture.rows(), len(mixture.experts.down_proj)  # type: ignore[arg-type]

    def renumbered(_module: nn.Module, _args: Any, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        numbers = torch.tensor(retained, device=out[0].device)
        if len(out) == 2:  # the weights [n, retained] of the inputs of each expert (Llama 4)
            weights, logits = out
            return weights.new_zeros(len(weights), count).index_copy(1, numbers, weights), logits
        logits, weights, selected = out
        return logits, weights, numbers[selected]

    for (module, name), tensor in rows.items():
        _replace(module, name, _select(tensor, retained, count))
    _set_count(mixture.router, count, len(retained))
    handle = mixture.router.register_forward_hook(renumbered)
    try:
        yield
    finally:
        handle.remove()
        _set_count(mixture.router, len(retained), count)
        for (module, name), tensor in original.items():
            setattr(module, name, tensor)


def retain_experts(
    mixture: Mixture, retained: Sequence[int], rows: Mapping[tuple[nn.Module, str], Tensor]
) -> None:
    """Remove all experts of a mixture but the retained ones, which get this order.

    rows: the router's tensors [experts, ...] of all experts, see `Mixture.rows`.
    """
    count = len(mixture.experts.down_proj)  # type: ignore[arg-type]
    stacks = {(mixture.experts, name): p for name, p in mixture.experts.named_parameters()}
    for (module, name), tensor in {**stacks, **rows}.items():
        _replace(module, name, _select(tensor, retained, count))
    _set_count(mixture.block, count, len(retained))
    if isinstance(mixture.router, nn.Linear):
        mixture.router.out_features = len(retained)


def _set_count(module: nn.Module, former: int, count: int) -> None:
    """Set the number of experts of the modules that have the former number."""
    for inner in module.modules():
        if getattr(inner, "num_experts", None) == former:
            vars(inner)["num_experts"] = count


def set_expert_count(network: PreTrainedModel, count: int) -> None:
    """Set the number of experts per layer in the config."""
    config = text_config(network)
    for name in EXPERT_COUNTS:
        if hasattr(config, name):
            setattr(config, name, count)
