"""LoRA (Hu et al., ICLR 2022) through PEFT, merged back.

Every linear inside a projection, each factor of a low-rank one too, gets an adapter of its own:

    y = W x + alpha / r B A x, A [r, in] random, B [out, r] zero

so that the model starts as it was. Merging adds `alpha / r B A` to W: a factor keeps its shape, and
nothing grows. Of a quantised matrix the sum is rounded in every pass, `Q[W + alpha / r B A]`, as in
LR-QAT (Bondarenko et al. 2024), so that what is merged has the bits that there were. Other parts in
a stored form (identity blocks, sparse terms) and factors that projections share have no adapter.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ...errors import InputError
from ...models.architectures import architecture_of, decoder_layers
from ...models.config import quiet
from ...models.layers import projection_paths
from ...modules.adapters import with_parts
from .straight_through import StraightThrough

PLACES = {"lora": ("q", "k", "v", "o", "gate", "up", "down"), "lora_mlp": ("gate", "up", "down")}


def add_adapters(
    network: PreTrainedModel, train: str, rank: int, alpha: int, seed: int
) -> list[nn.Parameter]:
    """Put adapters of a rank into the projections of a network, and give their parameters.

    train: "lora" for all projections of the decoder layers, "lora_mlp" for those of the MLPs.
    Raises InputError without PEFT, and where no projection is a matrix in numbers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError(
            "LoRA needs PEFT, which is not installed: pip install -r requirements-lora.txt, or "
            "train the factors themselves (--train factors)."
        ) from error
    names, rounded = set(_linears(network, train)), set(_rounded(network, train))
    if not names | rounded:
        raise InputError(
            f"There is nothing to put adapters on: no projection that '{train}' names is a matrix "
            "in numbers. Train factors or all of it (--train)."
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=sorted(f"network.{path}" for path in names),
        target_parameters=[f"network.{path}.numbers" for path in sorted(rounded)],
    )
    # without a config of its own: PEFT would put the adapters meant for the projections of one MLP
    # on the experts of another layer where the family has both
    around = nn.ModuleDict({"network": network})
    # alone: while another thread builds a network, torch would leave the adapters unset
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, around)
    return [p for name, p in network.named_parameters() if "lora_" in name]


def _linears(network: PreTrainedModel, train: str) -> Iterator[str]:
    """The paths of the modules in numbers that get an adapter."""
    for path in with_parts(network, _projections(network, train)):
        if isinstance(getattr(network.get_submodule(path), "weight", None), torch.Tensor):
            yield path


def _rounded(network: PreTrainedModel, train: str) -> Iterator[str]:
    """The paths of the quantised matrices that get an adapter."""
    named = list(network.named_modules(remove_duplicate=False))
    places = Counter(id(module) for _, module in named)
    inside = tuple(f"{path}." for path in _projections(network, train))
    for path, module in named:
        plain = isinstance(module, StraightThrough) and module.numbers.dim() == 2
        if plain and places[id(module)] == 1 and f"{path}.".startswith(inside):
            yield path


def _projections(network: PreTrainedModel, train: str) -> set[str]:
    """The paths of the projections that are trained."""
    paths = {id(module): path for path, module in network.named_modules()}
    row, projections = architecture_of(network), set()
    for layer in decoder_layers(network):
        inside = projection_paths(row, layer)
        projections |= {
            paths[id(layer.get_submodule(inside[name]))] for name in PLACES[train] if name in inside
        }
    return projections


def merge_adapters(network: PreTrainedModel, train: str) -> None:
    """Where adapters are what was trained, put matrices with what they add in their places. Other
    networks that share the matrices without are untouched.
    """
    if train not in PLACES:
        return
    from peft.tuners.lora import LoraLayer

    adapted = [(p, m) for p, m in network.named_modules() if isinstance(m, LoraLayer)]
    for path, module in adapted:
        network.set_submodule(path, _merged(module))


def _merged(module: Any) -> nn.Module:
    own: nn.Module = copy.copy(module.get_base_layer())
    own._parameters = dict(own._parameters)
    name = getattr(module, "parameter_name", "weight")
    weight: Any = getattr(own, name)
    (adapter,) = module.active_adapters
    with torch.no_grad():
        added = module.get_delta_weight(adapter)
        setattr(own, name, nn.Parameter((weight + added).to(weight.dtype), requires_grad=False))
    return own
