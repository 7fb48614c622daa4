"""The routed experts of a family as it stores them, stacked, and one by one.

Most families have gates above ups along the rows of one matrix. gpt-oss has the matrices
transposed, gates and ups side by side in turn, and biases. transformers notes all of that on the
module (`use_experts_implementation`), but for Llama 4, whose matrices are transposed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import MLP, Linear

PARTS = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}


@dataclass(frozen=True)
class Layout:
    """How matrices are stacked. transposed: [experts, in, out]; concatenated: gates before ups, not
    in turn with them.
    """

    transposed: bool
    concatenated: bool
    biases: bool


def layout_of(native: Any) -> Layout:
    """The layout of a stacked module."""
    if not hasattr(native, "is_transposed"):
        return Layout(transposed=True, concatenated=True, biases=False)
    return Layout(native.is_transposed, native.is_concatenated, native.has_bias)


def separate(native: Any, activation: str) -> tuple[MLP, ...]:
    """The experts of a stacked module, as views of its tensors where they can be."""
    return tuple(
        MLP(
            **{name: _linear(native, leaf, name, number) for leaf in PARTS for name in PARTS[leaf]},
            activation=activation,
        )
        for number in range(len(native.down_proj))
    )


def _linear(native: Any, leaf: str, name: str, number: int) -> Linear:
    layout, weight = layout_of(native), getattr(native, leaf).detach()[number]
    weight = weight.T if layout.transposed else weight
    bias = getattr(native, f"{leaf}_bias").detach()[number] if layout.biases else None
    if len(PARTS[leaf]) == 1:
        return Linear(weight, bias)
    own = _rows(layout, len(weight) // 2, PARTS[leaf].index(name))
    return Linear(weight[own], None if bias is None else bias[own])


def _rows(layout: Layout, width: int, place: int) -> slice:
    """The rows of gates (0) or ups (1) in the matrix that holds both."""
    if layout.concatenated:
        return slice(place * width, (place + 1) * width)
    return slice(place, None, 2)


def stacked(native: Any, leaf: str, experts: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """A stacked parameter of a module from those of its experts, by "gate_proj.weight" and so on.

    leaf: of the parameter, such as "gate_up_proj_bias". Returns [experts, ...].
    """
    kind = "bias" if leaf.endswith("_bias") else "weight"
    layout, parts = layout_of(native), PARTS[leaf.removesuffix("_bias")]
    whole = []
    for expert in experts:
        own = [expert[f"{name}_proj.{kind}"] for name in parts]
        joined = torch.cat(own)
        for place, one in enumerate(own if len(own) > 1 else ()):
            joined[_rows(layout, len(one), place)] = one
        whole.append(joined.T if layout.transposed and kind == "weight" else joined)
    return torch.stack(whole)


def fill_stacked(native: Any, experts: Sequence[Mapping[str, Tensor]]) -> None:
    """Give a stacked module the parameters [experts, ...] made of those of its experts, which are
    named as `stacked` has them.
    """
    for name, wanted in list(native.named_parameters()):
        tensor = stacked(native, name, experts).to(wanted.dtype).contiguous()
        setattr(native, name, nn.Parameter(tensor, requires_grad=False))
