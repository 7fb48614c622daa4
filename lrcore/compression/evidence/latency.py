"""Evidence "latency": what a decoder layer takes at the ranks of each slot, for budgets of latency.
Ours; in no paper.

One layer of every kind is timed, dense and with one slot truncated in turn, so that a machine whose
speed changes changes both. The table holds for the device, its dtype and its threads.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...cache import keep_value, read_as
from ...cancellation import unchecked
from ...errors import InputError
from ...hardware import hardware, seconds_now
from ...latency import Latency, SlotTimes, rising
from ...models.architectures import decoder_layers, reads_tokens, text_config
from ...models.layers import clone, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.partial import Call
from ...models.stream import LayerStream
from ...progress import Progress
from ...recipe import Recipe
from ...spectra import Cost, Slot
from ..factorise import Factorisation
from .cache import cache_file
from .kind import EvidenceKind

FORMAT = 1  # of the files on disk; increase it whenever what is measured changes its meaning
RANKS = 8  # of a slot that are timed, evenly spaced
ROUNDS = 7  # dense and truncated take turns so often; the median counts
SAMPLE = 2e-3  # seconds that one reading takes at least: a shorter one is repeated


def measure(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> Latency:
    """Layer times over one window of `seq_len` tokens, kept on disk beside the calibration.

    Raises InputError for a model whose layers are offloaded.
    """
    if model.offloaded:
        raise InputError(
            "Latency is not measured with offloaded layers, for reading them takes the time. Leave "
            "offload out, or choose another budget."
        )
    device = _device(model)
    path = _file(factors, recipe, device)
    if (kept := read_as(path, lambda value: _read(value, factors))) is not None:
        return kept
    found = _measured(model, factors, recipe.seq_len, device, progress)
    keep_value(path, _plain(found))
    return found


def _file(factors: Factorisation, recipe: Recipe, device: str) -> Path:
    return cache_file("latency", factors, FORMAT, RANKS, ROUNDS, recipe.seq_len, device)


def _device(model: LoadedModel) -> str:
    """The device in words: its name, threads on a CPU, and the dtype."""
    own = hardware(str(model.device))
    threads = f", {torch.get_num_threads()} threads" if own.kind == "CPU" else ""
    return f"{own.name or own.kind}{threads}, {model.dtype}"


Kind = tuple[tuple[str, Cost], ...]  # components and costs: layers that have the same are one kind


def _measured(
    model: LoadedModel, factors: Factorisation, tokens: int, device: str, progress: Progress
) -> Latency:
    network = clone(model.network)
    stream = LayerStream(network, _window(network, tokens), 1)
    kinds = [tuple((name, factor.cost) for name, factor in own.items()) for own in factors.layers]
    known: dict[Kind, tuple[float, dict[str, SlotTimes]]] = {}
    for index, kind in enumerate(kinds):
        progress("latency", index, len(kinds))
        if kind not in known:
            known[kind] = _Timing(network, stream, index).of(factors.layers[index])
        if reads_tokens(network):  # later layers may read this one's keys and values
            stream.run(index)
    progress("latency", len(kinds), len(kinds))
    slots: dict[Slot, SlotTimes] = {
        (index, name): times
        for index, kind in enumerate(kinds)
        for name, times in known[kind][1].items()
    }
    return Latency(tokens, device, tuple(known[kind][0] for kind in kinds), slots)


def _window(network: PreTrainedModel, tokens: int) -> Tensor:
    """Some token ids [1, tokens]: the time does not depend on which."""
    vocabulary: int = text_config(network).vocab_size
    return torch.arange(tokens).remainder(vocabulary)[None]


@dataclass(frozen=True, eq=False)
class _Timing:
    """Timing decoder layer `index` of a network on what enters the first one."""

    network: PreTrainedModel
    stream: LayerStream
    index: int

    def of(self, layer_factors: Any) -> tuple[float, dict[str, SlotTimes]]:
        """Seconds of the dense layer, and with every slot truncated alone to some ranks."""
        dense = decoder_layers(self.network)[self.index]
        whole = statistics.median(one for one, _ in self.turns(dense, dense))
        times = {}
        for name, factor in layer_factors.items():
            ranks, seconds = timed_ranks(factor.cost), []
            for rank in ranks:
                turns = self.turns(dense, self.truncated(factor, rank))
                seconds.append(whole * statistics.median(small / one for one, small in turns))
            times[name] = SlotTimes(tuple(ranks), tuple(rising(seconds)), whole)
        return whole, times

    def truncated(self, factor: Any, rank: int) -> nn.Module:
        """The layer with one slot at a rank; the network keeps the dense one."""
        layers = decoder_layers(self.network)
        dense = layers[self.index]
        layers[self.index] = clone(dense)
        write_layer(self.network, factor.truncate(read_exact(self.network, self.index), rank))
        small = layers[self.index]
        layers[self.index] = dense
        return small

    def turns(self, dense: nn.Module, small: nn.Module) -> Iterator[tuple[float, float]]:
        """Seconds of both layers, one after the other, `ROUNDS` times."""
        hidden, call = self.stream.hidden[0], self.stream.call(self.index, 0)
        for layer in (dense, small):  # the first pass of a layer takes longer
            _seconds(layer, hidden, call, 1)
        repeats = math.ceil(SAMPLE / _seconds(dense, hidden, call, 1))
        for _ in range(ROUNDS):
            yield _seconds(dense, hidden, call, repeats), _seconds(small, hidden, call, repeats)


@unchecked()
@torch.inference_mode()
def _seconds(layer: nn.Module, hidden: Tensor, call: Call, repeats: int) -> float:
    """Of one pass of a layer over hidden [1, t, d], the mean of so many."""
    args, kwargs = call
    began = seconds_now(hidden.device)
    for _ in range(repeats):
        layer(hidden, *args, **kwargs)
    return (seconds_now(hidden.device) - began) / repeats


def timed_ranks(cost: Cost) -> list[int]:
    """At most `RANKS` ranks below full that save parameters, evenly spaced, ascending."""
    ranks = range(cost.step, cost.cap + 1, cost.step)
    if len(ranks) <= RANKS:
        return list(ranks)
    return sorted({ranks[round(i * (len(ranks) - 1) / (RANKS - 1))] for i in range(RANKS)})


def _plain(found: Latency) -> dict[str, Any]:
    slots = [
        [*slot, list(one.ranks), list(one.seconds), one.full] for slot, one in found.slots.items()
    ]
    own = {"tokens": found.tokens, "device": found.device, "layers": list(found.layers)}
    return own | {"slots": slots}


def _read(kept: dict[str, Any], factors: Factorisation) -> Latency:
    """The inverse of `_plain`, after JSON. Raises ValueError where the slots of these factors were
    not measured at their ranks.
    """
    slots = {
        (layer, name): SlotTimes(tuple(ranks), tuple(map(float, seconds)), float(full))
        for layer, name, ranks, seconds, full in kept["slots"]
    }
    layers = tuple(map(float, kept["layers"]))
    timed = {slot: tuple(timed_ranks(one.cost)) for slot, one in factors.spectra.items()}
    whole = all(len(one.ranks) == len(one.seconds) for one in slots.values())
    if {slot: one.ranks for slot, one in slots.items()} != timed or not whole:
        raise ValueError(kept)
    if len(layers) != len(factors.layers):
        raise ValueError(kept)
    return Latency(int(kept["tokens"]), str(kept["device"]), layers, slots)


def tokens_run(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`: layers of one kind are timed once."""
    kinds: dict[Kind, int] = {}
    for own in factors.layers:
        kinds[tuple((name, one.cost) for name, one in own.items())] = len(own)
    passes = sum(2 * (ROUNDS + 2) * RANKS * slots for slots in kinds.values())
    return recipe.seq_len * passes / len(factors.layers)


KIND = EvidenceKind(
    "latency",
    "Milliseconds of a decoder layer at the ranks of every slot, for budget latency; one layer of "
    "every kind is timed, kept on disk.",
    measure,
    tokens=tokens_run,
)
