"""The routed experts of a network and its routers: tried without some of them, and left so."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.layers import experts_path, experts_per_token, module_at

COUNTS = ("num_experts", "num_local_experts")  # of a config; either may stand for the family's own


@dataclass(frozen=True, eq=False)
class Mixture:
    """The mixture of experts of one layer: its block, router and stacked experts."""

    block: nn.Module
    router: nn.Module
    experts: nn.Module

    @property
    def active(self) -> int:
        """How many experts a token is routed to."""
        return experts_per_token(self.router)

    def rows(self) -> dict[tuple[nn.Module, str], Tensor]:
        """What the router has of every expert [experts, ...], by the module that holds it and its
        name there.
        """
        held: dict[tuple[nn.Module, str], Tensor] = {}
        count = len(self.experts.down_proj)  # type: ignore[arg-type]
        for module in self.router.modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            held |= {(module, name): tensor for name, tensor in own if count in tensor.shape}
        return held


def mixture_of(network: PreTrainedModel, index: int) -> Mixture | None:
    """The mixture in decoder layer `index`; None in a layer without one."""
    row, layer = architecture_of(network), decoder_layers(network)[index]
    experts = module_at(layer, experts_path(row)) if row.experts else None
    if experts is None:
        return None
    return Mixture(layer.get_submodule(row.mlp), layer.get_submodule(row.router), experts)


def expert_count(network: PreTrainedModel) -> int:
    """The routed experts of every layer that has some, 0 for a network without any."""
    config = text_config(network)
    if not architecture_of(network).experts:
        return 0
    return int(next(getattr(config, name) for name in COUNTS if hasattr(config, name)))


def expert_groups(network: PreTrainedModel) -> int:
    """The groups of adjacent experts between which a router chooses first (DeepSeek-V2), or 1."""
    return int(getattr(text_config(network), "n_group", None) or 1)


def _exchange(module: nn.Module, name: str, tensor: Tensor) -> None:
    parameter = isinstance(getattr(module, name), nn.Parameter)
    setattr(module, name, nn.Parameter(tensor, requires_grad=False) if parameter else tensor)


def _chosen(tensor: Tensor, kept: Sequence[int], count: int) -> Tensor:
    """The entries of some experts of a tensor that has one for each of `count`."""
    dim = list(tensor.shape).index(count)
    return tensor.index_select(dim, torch.tensor(kept, device=tensor.device))


@contextmanager
def routed_to(
    mixture: Mixture, kept: Sequence[int], rows: Mapping[tuple[nn.Module, str], Tensor]
) -> Iterator[None]:
    """Inside, tokens are routed to the experts kept alone; no expert is moved.

    rows: what the router is to have of every expert [experts, ...], those that are not kept too.
    """
    before, count = mixture.rows(), len(mixture.experts.down_proj)  # type: ignore[arg-type]

    def renumbered(_module: nn.Module, _args: Any, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        own = torch.tensor(kept, device=out[0].device)
        if len(out) == 2:  # the weights [n, kept] of the inputs of every expert (Llama 4)
            weights, logits = out
            return weights.new_zeros(len(weights), count).index_copy(1, own, weights), logits
        logits, weights, chosen = out
        return logits, weights, own[chosen]

    for (module, name), tensor in rows.items():
        _exchange(module, name, _chosen(tensor, kept, count))
    handle = mixture.router.register_forward_hook(renumbered)
    try:
        yield
    finally:
        handle.remove()
        for (module, name), tensor in before.items():
            setattr(module, name, tensor)


def keep_experts(
    mixture: Mixture, kept: Sequence[int], rows: Mapping[tuple[nn.Module, str], Tensor]
) -> None:
    """Leave a mixture with the experts kept alone, in this order.

    rows: what the router has of every expert [experts, ...], of which those kept stay.
    """
    count = len(mixture.experts.down_proj)  # type: ignore[arg-type]
    own = {(mixture.experts, name): one for name, one in mixture.experts.named_parameters()}
    for (module, name), tensor in {**own, **rows}.items():
        _exchange(module, name, _chosen(tensor, kept, count))
    for module in mixture.block.modules():
        if getattr(module, "num_experts", None) == count:
            vars(module)["num_experts"] = len(kept)
    if isinstance(mixture.router, nn.Linear):
        mixture.router.out_features = len(kept)


def count_in_config(network: PreTrainedModel, count: int) -> None:
    """Say in the config how many experts every layer has."""
    config = text_config(network)
    for name in COUNTS:
        if hasattr(config, name):
            setattr(config, name, count)
