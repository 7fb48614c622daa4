"""LoRA (Hu et al., ICLR 2022) through PEFT, with merged adapters.

Each linear module in a projection, including each factor of a low-rank projection, gets an
adapter:

    y = W x + alpha / r B A x, A [r, in] random, B [out, r] zero

so the model starts unchanged. Merging adds `alpha / r B A` to W: factors keep their shapes, and
no tensor grows. For a quantized matrix the sum is rounded in each pass, `Q[W + alpha / r B A]`, as
in LR-QAT (Bondarenko et al. 2024), so the merged matrix has the same bits. Other parts in a stored
form (identity blocks, sparse terms) and factors that projections share have no adapter.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ....layers.modules.adapters import with_inner_linears
from ....models.architectures import architecture_of, decoder_layers
from ....models.config import quiet
from ....models.layers import projection_paths
from ....system.errors import InputError
from .straight_through import StraightThrough

ADAPTED = {"lora": ("q", "k", "v", "o", "gate", "up", "down"), "lora_mlp": ("gate", "up", "down")}


def add_adapters(
    network: PreTrainedModel, train: str, rank: int, alpha: int, seed: int
) -> list[nn.Parameter]:
    """Add adapters of a rank to the projections of a network; return their parameters.

    train: "lora" for all projections of the decoder layers, "lora_mlp" for the projections of the
    MLPs. Raises InputError if PEFT is not installed, or if no projection is stored as plain
    numbers.
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
            f"No adapters can be added: no projection of '{train}' is stored as plain numbers. "
            "Train factors or all (--train)."
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=sorted(f"network.{path}" for path in names),
        target_parameters=[f"network.{path}.numbers" for path in sorted(rounded)],
    )
    # The wrapper has no config: with the network's config, PEFT would put the adapters of an MLP on
    # the experts of another layer in families that have both.
    wrapper = nn.ModuleDict({"network": network})
    # `quiet` excludes other threads: while a thread builds a network, torch does not initialize
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, wrapper)
    return [p for name, p in network.named_parameters() if "lora_" in name]


def _linears(network: PreTrainedModel, train: str) -> Iterator[str]:
    """Yield the paths of the modules with plain numbers that get an adapter."""
    for path in with_inner_linears(network, _projections(network, train)):
        if isinstance(getattr(network.get_submodule(path), "weight", None), torch.Tensor):
            yield path


def _rounded(network: PreTrainedModel, train: str) -> Iterator[str]:
    """Yield the paths of the quantized matrices that get an adapter."""
    named = list(network.named_modules(remove_duplicate=False))
    uses = Counter(id(module) for _, module in named)
    prefixes = tuple(f"{path}." for path in _projections(network, train))
    for path, module in named:
        is_matrix = isinstance(module, StraightThrough) and module.numbers.dim() == 2
        if is_matrix and uses[id(module)] == 1 and f"{path}.".startswith(prefixes):
            yield path


def _projections(network: PreTrainedModel, train: str) -> set[str]:
    """Return the paths of the projections that are trained."""
    paths = {id(module): path for path, module in network.named_modules()}
    row, projections = architecture_of(network), set()
    for layer in decoder_layers(network):
        inside = projection_paths(row, layer)
        projections |= {
            paths[id(layer.get_submodule(inside[name]))]
            for name in ADAPTED[train]
            if name in inside
        }
    return projections


def merge_adapters(network: PreTrainedModel, train: str) -> None:
    """Replace adapters, if they were trained, by matrices with the adapter added.

    Other networks that share the original matrices are unchanged.
    """
    if train not in ADAPTED:
        return
    from peft.tuners.lora import LoraLayer

    adapted = [(p, m) for p, m in network.named_modules() if isinstance(m, LoraLayer)]
    for path, module in adapted:
        network.set_submodule(path, _merged(module))


def _merged(module: Any) -> nn.Module:
    merged: nn.Module = copy.copy(module.get_base_layer())
    merged._parameters = dict(merged._parameters)
    name = getattr(module, "parameter_name", "weight")
    weight: Any = getattr(merged, name)
    (adapter,) = module.active_adapters
    with torch.no_grad():
        added = module.get_delta_weight(adapter)
        setattr(merged, name, nn.Parameter((weight + added).to(weight.dtype), requires_grad=False))
    return merged
