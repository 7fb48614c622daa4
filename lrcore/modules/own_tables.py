"""Rotary tables of GPT-J, which has sines and cosines of its own making.

Up to transformers 5.23 every attention keeps them by position; from 5.24 on the network has them in
one module and gives them to the attention, sines first, with one column for both of a pair.
"""

import torch
from torch import Tensor, nn

# the buffer, and what transformers makes it anew of where a network is loaded
FIELDS = ("embed_positions", "max_positions", "pos_embd_dim")
SINES_FIRST = ("GPTJAttention",)  # classes that compressed attention stands for


def own_table(module: nn.Module | None) -> Tensor | None:
    """The sines and then the cosines of every position, [positions, rotary part], which an
    attention or rotary module keeps; None where it keeps none.
    """
    table: Tensor | None = getattr(module, FIELDS[0], None)
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
    """cos and sin as the network gives them, or of the attention's own table, or of tables given
    sines first: then [b or 1, t, rotary part] each, laid out as (first halves, second halves).

    positions [b or 1, t].
    """
    table = own_table(attention)
    if given is None and table is not None and positions is not None:
        sines, cosines = table.to(device=positions.device, dtype=dtype)[positions].chunk(2, dim=-1)
        given = sines, cosines
    elif not any(kind.__name__ in SINES_FIRST for kind in type(attention).__mro__):
        return given
    if given is None:
        return None
    sin, cos = given
    return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
