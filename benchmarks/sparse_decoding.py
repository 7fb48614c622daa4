"""Decoding speed of SmolLM2-135M with sparse matrices in its MLPs.

Processor time of one thread, so that other processes on the machine matter little.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

import lrcore
from lrcore.layers.forms import Form, masked, sparse_codes, two_of_four
from lrcore.layers.layer import Layer, LowRank, Stored
from lrcore.models.architectures import decoder_layers
from lrcore.models.kv_cache import forward_with_cache
from lrcore.models.layers import clone, read_layer, write_layer

from .report import log, table, write_section
from .subjects import REAL_MODEL

ENTRIES = (100, 200, 300)  # nonzero numbers per row of the codes
ATOMS = 3  # of the dictionary per nonzero number, at most as many as inputs
KEPT = 0.8  # of the parameters, where all matrices have codes
PROMPT, NEW, ROUNDS = 16, 12, 3


def sparse_decoding(models: list[str]) -> None:
    """Decode with the dense model and with each sparse one in turns."""
    if models:
        return
    torch.set_num_threads(1)
    model, rows = lrcore.load(REAL_MODEL, dtype="float32"), []
    for name, change in _changes():
        network = clone(model.network)
        for index in range(len(decoder_layers(network))):
            write_layer(network, change(read_layer(network, index)))
        seconds(network)  # the first step makes the matrices that are kept
        turns = [(seconds(model.network), seconds(network)) for _ in range(ROUNDS)]
        dense, sparse = (min(column) for column in zip(*turns, strict=True))
        log(f"sparse_decoding {name}: {1000 * sparse:.1f} ms, dense {1000 * dense:.1f} ms")
        rows.append([name, f"{1000 * sparse:.1f}", f"{1000 * dense:.1f}", f"{dense / sparse:.2f}"])
    header = ["sparse matrices", "ms per token", "dense model", "speed / dense"]
    caption = (
        f"**{REAL_MODEL}**, float32, random sparse numbers in all layers; processor time of one "
        f"thread, least of {ROUNDS} rounds of {NEW} tokens, in turns."
    )
    write_section("sparse_decoding", f"{caption}\n\n{table(header, rows)}")


def _changes() -> Iterator[tuple[str, Callable[[Layer], Layer]]]:
    for entries in ENTRIES:
        yield (
            f"gate and up: codes, {entries} numbers per row",
            partial(coded, entries=entries),
        )
    yield "all matrices: codes, 20% removed", coded_apart
    yield "gate and up: half of the numbers", lambda layer: _stored(layer, masked, _half)
    yield "gate and up: two of four numbers", lambda layer: _stored(layer, two_of_four, _pairs)


def coded(layer: Layer, entries: int) -> Layer:
    """Return a layer whose gate and up have random codes and a common dictionary."""
    inputs = layer.matrices()["up"].weight.shape[1]
    atoms = min(ATOMS * entries, inputs)
    down = torch.randn(atoms, inputs) / inputs
    return layer.with_matrices(
        **{name: _pair(layer, name, down, entries) for name in ("gate", "up")}
    )


def coded_apart(layer: Layer) -> Layer:
    """Return a layer whose matrices have codes and dictionaries of their own, as by `compot`, with
    a fifth of the parameters removed.
    """
    pairs = {}
    for name, matrix in layer.matrices().items():
        outputs, inputs = matrix.weight.shape
        entries = int(KEPT * outputs * inputs / (outputs + 2 * (inputs + outputs / 16)))
        pairs[name] = _pair(layer, name, torch.randn(2 * entries, inputs) / inputs, entries)
    return layer.with_matrices(**pairs)


def _pair(layer: Layer, name: str, down: Tensor, entries: int) -> LowRank:
    atoms = len(down)
    numbers = torch.randn(len(layer.matrices()[name].weight), atoms) / atoms
    chosen = torch.rand_like(numbers).topk(entries, 1).indices
    mask = torch.zeros_like(numbers, dtype=torch.bool).scatter_(1, chosen, True)
    return LowRank(down, sparse_codes(numbers, mask), None)


def _stored(layer: Layer, form: Callable[..., Form], mask: Callable[..., Tensor]) -> Layer:
    old = {name: layer.matrices()[name].weight for name in ("gate", "up")}
    return layer.with_matrices(
        **{name: Stored(form(weight, mask(weight)), None) for name, weight in old.items()}
    )


def _half(weight: Tensor) -> Tensor:
    return torch.rand_like(weight) < 0.5


def _pairs(weight: Tensor) -> Tensor:
    rows, columns = weight.shape
    return torch.tensor([True, True, False, False]).repeat(rows, columns // 4)


@torch.inference_mode()
def seconds(network: PreTrainedModel) -> float:
    """Return the processor seconds of a decoded token."""
    out, cache = forward_with_cache(network, torch.randint(1000, (1, PROMPT)), None)
    begin = time.process_time()
    for _ in range(NEW):
        token = out.logits[:, -1:].argmax(-1)
        out, cache = forward_with_cache(network, token, cache)
    return (time.process_time() - begin) / NEW
