"""Rotary tables: layouts of cos and sin, and the tables that GPT-J stores.

Up to transformers 5.23 each attention of GPT-J stores a table by position. From 5.24 on a module
of the network holds it and passes it to the attention, sines first, with one column per pair.
"""

import torch
from torch import Tensor, nn

# the buffer, and the attributes from which transformers recomputes it after loading
FIELDS = ("embed_positions", "max_positions", "pos_embd_dim")
SINES_FIRST = ("GPTJAttention",)  # classes that get the sines first


def stored_table(module: nn.Module | None) -> Tensor | None:
    """Return the sines and then the cosines of each position that a module stores, or None.

    [positions, rotary part].
    """
    table: Tensor | None = getattr(module, FIELDS[0], None)
    return table


def copy_table(attention: nn.Module, native: nn.Module) -> None:
    """Copy the stored table of the native module, if it exists."""
    table = stored_table(native)
    if table is not None:
        attention.register_buffer(FIELDS[0], table, persistent=False)
        for name in FIELDS[1:]:
            setattr(attention, name, getattr(native, name))


def rotary_tables(
    attention: nn.Module,
    tables: tuple[Tensor, Tensor] | None,
    positions: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor] | None:
    """Return cos and sin of an attention: from the network, or from the attention's stored table.

    Tables with the sines first become [b or 1, t, rotary part] each, laid out as (first halves,
    second halves). positions [b or 1, t].
    """
    stored = stored_table(attention)
    if tables is None and stored is not None and positions is not None:
        sines, cosines = stored.to(device=positions.device, dtype=dtype)[positions].chunk(2, dim=-1)
        tables = sines, cosines
    elif not any(kind.__name__ in SINES_FIRST for kind in type(attention).__mro__):
        return tables
    if tables is None:
        return None
    sin, cos = tables
    return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


def in_halves(layout: str, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Convert tables of a layout of `layer.Attention.tables` to (first halves, second halves).

    [b, t, size] each, or [b, t, size / 2] for layout "once" -> [b, t, size].
    """
    if layout == "halves":
        return cos, sin
    step = 2 if layout == "neighbours" else 1
    first, second = (torch.cat([table[..., ::step]] * 2, dim=-1) for table in (cos, sin))
    return first, second


def full_head_tables(cos: Tensor, sin: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Widen cos and sin of a partial rotary embedding to a full head, with pairs of angle zero.

    [b, t, rotary part] -> [b, t, head_size] each, laid out as (first halves, second halves).
    """
    half, padding = cos.shape[-1] // 2, (head_size - cos.shape[-1]) // 2
    if not padding:
        return cos, sin
    ones_part, zeros_part = (
        cos.new_ones(*cos.shape[:-1], padding),
        cos.new_zeros(*cos.shape[:-1], padding),
    )
    return (
        torch.cat((cos[..., :half], ones_part, cos[..., half:], ones_part), dim=-1),
        torch.cat((sin[..., :half], zeros_part, sin[..., half:], zeros_part), dim=-1),
    )


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (j, j + size / 2) of states [..., size], in their dtype.

    cos and sin [..., size]; some families (OLMo 2) hold them in float32 for any dtype of the model.
    """
    half = states.shape[-1] // 2
    crossed = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return (states * cos + crossed * sin).to(states.dtype)
