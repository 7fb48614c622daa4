"""Evidence "latency": the time of a decoder layer at the ranks of each slot. Ours; in no paper.

For budgets of latency. One layer of each kind is timed, dense and with a slot truncated, in
alternation, so that a change of the machine's speed affects both. The table is valid for the
device, the dtype and the number of threads.
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

from ...layers.spectra import Cost, Slot
from ...models.architectures import decoder_layers, has_token_inputs, text_config
from ...models.layers import clone, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.partial import Call
from ...models.stream import LayerStream
from ...ranks.repricing import Latency, SlotTimes, rising
from ...recipes.recipe import Recipe
from ...system.cache import keep_value, read_as
from ...system.cancellation import unchecked
from ...system.errors import InputError
from ...system.hardware import hardware, seconds_now
from ...system.progress import Progress
from ..solve.factorize import Factorization
from .kind import EvidenceKind, cache_file

FORMAT = 1  # of the files on disk; increase it when the meaning of the contents changes
RANKS = 8  # timed ranks of a slot, evenly spaced
ROUNDS = 7  # alternations of dense and truncated; the result is the median
MIN_SECONDS = 2e-3  # of one reading: shorter calls are repeated


def measure(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Latency:
    """Return layer times over a window of `seq_len` tokens, cached on disk.

    Raises InputError if the model's layers are offloaded.
    """
    if model.offloaded:
        raise InputError(
            "Latency cannot be measured with offloaded layers: it would be the time of reading "
            "them. Load the model without offload, or choose another budget."
        )
    device = _device(model)
    path = _file(factors, recipe, device)
    if (cached := read_as(path, lambda value: _from_dict(value, factors))) is not None:
        return cached
    latency = _time_layers(model, factors, recipe.seq_len, device, progress)
    keep_value(path, _to_dict(latency))
    return latency


def _file(factors: Factorization, recipe: Recipe, device: str) -> Path:
    return cache_file("latency", factors, FORMAT, RANKS, ROUNDS, recipe.seq_len, device)


def _device(model: LoadedModel) -> str:
    """Return a description of the device: name, threads of a CPU, and dtype."""
    device = hardware(str(model.device))
    threads = f", {torch.get_num_threads()} threads" if device.kind == "CPU" else ""
    return f"{device.name or device.kind}{threads}, {model.dtype}"


Kind = tuple[tuple[str, Cost], ...]  # components and costs: equal for layers of the same kind


def _time_layers(
    model: LoadedModel, factors: Factorization, tokens: int, device: str, progress: Progress
) -> Latency:
    network = clone(model.network)
    stream = LayerStream(network, _window(network, tokens), 1)
    kinds = [_kind(layer_factors) for layer_factors in factors.layers]
    times: dict[Kind, tuple[float, dict[str, SlotTimes]]] = {}
    for index, kind in enumerate(kinds):
        progress("latency", index, len(kinds))
        if kind not in times:
            times[kind] = _Timing(network, stream, index).of(factors.layers[index])
        if has_token_inputs(network):  # later layers may read this layer's keys and values
            stream.run(index)
    progress("latency", len(kinds), len(kinds))
    slots: dict[Slot, SlotTimes] = {
        (index, name): slot_times
        for index, kind in enumerate(kinds)
        for name, slot_times in times[kind][1].items()
    }
    return Latency(tokens, device, tuple(times[kind][0] for kind in kinds), slots)


def _kind(layer_factors: Any) -> Kind:
    return tuple((name, factor.cost) for name, factor in layer_factors.items())


def _window(network: PreTrainedModel, tokens: int) -> Tensor:
    """Return token ids [1, tokens]: the time does not depend on their values."""
    vocabulary: int = text_config(network).vocab_size
    return torch.arange(tokens).remainder(vocabulary)[None]


@dataclass(frozen=True, eq=False)
class _Timing:
    """Timing of decoder layer `index` of a network, on the inputs of the first layer."""

    network: PreTrainedModel
    stream: LayerStream
    index: int

    def of(self, layer_factors: Any) -> tuple[float, dict[str, SlotTimes]]:
        """Return the seconds of the dense layer, and with each slot truncated to a few ranks."""
        dense = decoder_layers(self.network)[self.index]
        dense_seconds = statistics.median(seconds for seconds, _ in self.turns(dense, dense))
        times = {}
        for name, factor in layer_factors.items():
            ranks, seconds = timed_ranks(factor.cost), []
            for rank in ranks:
                turns = self.turns(dense, self.truncated(factor, rank))
                ratio = statistics.median(small / reference for reference, small in turns)
                seconds.append(dense_seconds * ratio)
            times[name] = SlotTimes(tuple(ranks), tuple(rising(seconds)), dense_seconds)
        return dense_seconds, times

    def truncated(self, factor: Any, rank: int) -> nn.Module:
        """Return the layer with a slot at a rank; the network keeps the dense layer."""
        layers = decoder_layers(self.network)
        dense = layers[self.index]
        layers[self.index] = clone(dense)
        write_layer(self.network, factor.truncate(read_exact(self.network, self.index), rank))
        small = layers[self.index]
        layers[self.index] = dense
        return small

    def turns(self, dense: nn.Module, small: nn.Module) -> Iterator[tuple[float, float]]:
        """Yield the seconds of both layers, in alternation, `ROUNDS` times."""
        hidden, call = self.stream.hidden[0], self.stream.call(self.index, 0)
        for layer in (dense, small):  # the first pass of a layer takes longer
            _seconds(layer, hidden, call, 1)
        repeats = math.ceil(MIN_SECONDS / _seconds(dense, hidden, call, 1))
        for _ in range(ROUNDS):
            yield _seconds(dense, hidden, call, repeats), _seconds(small, hidden, call, repeats)


@unchecked()
@torch.inference_mode()
def _seconds(layer: nn.Module, hidden: Tensor, call: Call, repeats: int) -> float:
    """Return the seconds of a layer on hidden [1, t, d], the mean of `repeats` passes."""
    args, kwargs = call
    began = seconds_now(hidden.device)
    for _ in range(repeats):
        layer(hidden, *args, **kwargs)
    return (seconds_now(hidden.device) - began) / repeats


def timed_ranks(cost: Cost) -> list[int]:
    """Return at most `RANKS` ranks below full that save parameters, evenly spaced, ascending."""
    ranks = range(cost.step, cost.cap + 1, cost.step)
    if len(ranks) <= RANKS:
        return list(ranks)
    return sorted({ranks[round(i * (len(ranks) - 1) / (RANKS - 1))] for i in range(RANKS)})


def _to_dict(latency: Latency) -> dict[str, Any]:
    return {
        "tokens": latency.tokens,
        "device": latency.device,
        "layers": list(latency.layers),
        "slots": [
            [*slot, list(times.ranks), list(times.seconds), times.full]
            for slot, times in latency.slots.items()
        ],
    }


def _from_dict(stored: dict[str, Any], factors: Factorization) -> Latency:
    """Return the latency from the values of `_to_dict`, after JSON.

    Raises ValueError if the slots of these factors were not measured at their ranks.
    """
    slots = {
        (layer, name): SlotTimes(tuple(ranks), tuple(map(float, seconds)), float(full))
        for layer, name, ranks, seconds, full in stored["slots"]
    }
    layers = tuple(map(float, stored["layers"]))
    expected_ranks = {slot: tuple(timed_ranks(s.cost)) for slot, s in factors.spectra.items()}
    is_complete = all(len(times.ranks) == len(times.seconds) for times in slots.values())
    if {slot: times.ranks for slot, times in slots.items()} != expected_ranks or not is_complete:
        raise ValueError(stored)
    if len(layers) != len(factors.layers):
        raise ValueError(stored)
    return Latency(int(stored["tokens"]), str(stored["device"]), layers, slots)


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of latency: layers of one kind are timed once."""
    kinds: dict[Kind, int] = {}
    for layer_factors in factors.layers:
        kinds[_kind(layer_factors)] = len(layer_factors)
    passes = sum(2 * (ROUNDS + 2) * RANKS * slots for slots in kinds.values())
    return recipe.seq_len * passes / len(factors.layers)


KIND = EvidenceKind(
    "latency",
    "Milliseconds of a decoder layer at the ranks of every slot, for budget latency; one layer of "
    "every kind is timed, cached on disk.",
    measure,
    tokens=tokens_run,
)
