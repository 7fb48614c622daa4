"""Logits of tokens in pieces through a cache, and of left-padded rows."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


@torch.inference_mode()
def in_pieces(network: Any, tokens: Tensor, sizes: list[int], cache: Any = None) -> Tensor:
    """Return the logits of tokens [b, t] in pieces of these sizes. cache: an empty cache, by
    default a DynamicCache.
    """
    cache = DynamicCache(config=network.config) if cache is None else cache
    pieces = []
    for part, positions in zip(
        tokens.split(sizes, 1), torch.arange(tokens.shape[1]).split(sizes), strict=True
    ):
        # Bamba counts each call from 0 without them
        inputs = {"position_ids": positions[None]} if network.config.model_type == "bamba" else {}
        pieces.append(network(part, past_key_values=cache, use_cache=True, **inputs).logits)
    return torch.cat(pieces, 1)


def held(cache: Any) -> int:
    """Return the bytes of the keys and values in a cache, or of their replacements."""
    return sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))


@torch.inference_mode()
def check_left_padded(network: Any, tokens: Tensor) -> None:
    """Check that 20 tokens after 6 of padding, in a batch with a row of 26, have the logits of a
    separate pass, with and without a cache. tokens: at least [2, 26].
    """
    padded = torch.cat((torch.full((1, 6), 2), tokens[:1, :20]), 1)
    batch = torch.cat((padded, tokens[1:2, :26]))
    mask = torch.ones_like(batch)
    mask[0, :6] = 0
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    alone = network(tokens[:1, :20]).logits
    full_logits = network(batch, attention_mask=mask, position_ids=positions).logits
    assert torch.allclose(full_logits[:1, 6:], alone, atol=2e-5)
    cache, pieces = DynamicCache(config=network.config), []
    for start, stop in ((0, 15), (15, 16), (16, 26)):
        inputs = {"attention_mask": mask[:, :stop], "position_ids": positions[:, start:stop]}
        part = batch[:, start:stop]
        pieces.append(network(part, past_key_values=cache, use_cache=True, **inputs).logits)
    assert torch.allclose(torch.cat(pieces, 1)[:1, 6:], alone, atol=2e-5)
