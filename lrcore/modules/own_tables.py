"""Rotary tables of an attention that keeps its own, by position, instead of being given them."""

import torch
from torch import Tensor, nn

# GPT-J: the buffer, and what transformers makes it anew of where a network is loaded
FIELDS = ("embed_positions", "max_positions", "pos_embd_dim")


def own_table(attention: nn.Module) -> Tensor | None:
    """The sines and then the cosines of every position, [positions, rotary part], which an
    attention module keeps itself; None where the network gives them.
    """
    table: Tensor | None = getattr(attention, FIELDS[0], None)
    return table


def keep_table(attention: nn.Module, native: nn.Module) -> None:
    """Give a module the table of the one that it replaces, where that has one."""
    table = own_table(native)
    if table is not None:
        attention.register_buffer(FIELDS[0], table, persistent=False)
        for name in FIELDS[1:]:
            setattr(attention, name, getattr(native, name))


def tables_of(
    attention: nn.Module,
    given: tuple[Tensor, Tensor] | None,
    positions: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor] | None:
    """cos and sin as the network gives them, or from the attention's own table: [b or 1, t, rotary
    part] each, laid out as (first halves, second halves).

    positions [b or 1, t].
    """
    table = own_table(attention)
    if given is not None or table is None or positions is None:
        return given
    sin, cos = table.to(device=positions.device, dtype=dtype)[positions].chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
