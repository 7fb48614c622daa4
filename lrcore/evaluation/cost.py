"""What a model costs, measured: parameters, bytes on disk and in the KV cache, FLOPs, tokens per
second, peak memory.

FLOPs are those of matrix products, a multiply-add counted as two, as torch's own counter sees them;
scores over all positions, masked or not; experts in fused kernels it does not see. Speed is only
comparable within one call of `measure_speed`, where the models take turns.
"""

import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..errors import InputError
from ..hardware import seconds_now
from ..models.cached import cached
from ..models.counting import count_flops
from ..models.load import LoadedModel
from ..models.quantised_cache import QuantisedLayer, quantised_cache
from ..models.weights import fingerprint, weight_files
from ..modules.compressed import CompressedAttention
from ..progress import Progress, silent
from ..settings import check_least


@dataclass(frozen=True)
class ModelCost:
    """Measured.

    bytes_on_disk: of the weight files; None for a compressed model that was not saved.
    kv_bytes_per_token: of the cache object after a forward pass, over its tokens: less than the
    shapes say where layers keep only a window. flops_prefill: per token of a prompt of `context`
    tokens; flops_decode: of one token after so many; flops_formula: what `predicted_flops` says for
    the same, more than is counted where layers keep only a window.
    """

    parameters: int
    bytes_on_disk: int | None
    kv_bytes_per_token: float
    context: int
    flops_prefill: float
    flops_decode: float
    flops_formula: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Speed:
    """Medians over the rounds, in tokens per second.

    peak_memory: bytes at the highest, of the CUDA allocator or else of the process
    (which holds all models loaded); None where neither can be read. memory_of: "cuda" or "process".
    """

    name: str
    prefill: float
    decode: float
    peak_memory: int | None
    memory_of: str
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_cost(model: LoadedModel, context: int = 256, kv_bits: int | None = None) -> ModelCost:
    """The exact costs of a model; `context` tokens are the prompt of a prefill, and what a decoded
    token looks back on. kv_bits: of a quantised cache, see `quantised_cache`; its newest tokens are
    in full precision, so a short context says little.

    Raises InputError for a context below 1, where the model has no positions for context + 1
    tokens, and for other kv_bits than 8, 4 and 2.
    """
    check_least("context", context, 1)
    cache = None if kv_bits is None else quantised_cache(kv_bits)
    model.check_length(context + 1)
    prompt = _prompt(model, context)
    with _counting(model) as counter:
        cache = _forward(model, prompt, cache)
    prefill = counter.get_total_flops() / context
    kv = cache_bytes(cache) / context
    with _counting(model) as counter:
        _forward(model, prompt[:, :1], cache)
    return ModelCost(
        parameters=model.size.parameters,
        bytes_on_disk=bytes_on_disk(model),
        kv_bytes_per_token=kv,
        context=context,
        flops_prefill=prefill,
        flops_decode=float(counter.get_total_flops()),
        flops_formula=float(predicted_flops(model, context)),
    )


class _counting(FlopCounterMode):
    """Counts matrix products, with attention taken apart into its two: the fused kernels of a
    CPU are not in the counter's table, and the zeros that they are given multiply nothing.
    """

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(display=False)
        self._plain = sdpa_kernel(SDPBackend.MATH)
        every = model.network.modules()
        self._narrowed = [one for one in every if isinstance(one, CompressedAttention)]

    def __enter__(self) -> Self:
        self._fused(False)
        self._plain.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._plain.__exit__(*error)
        self._fused(True)

    def _fused(self, on: bool) -> None:
        for attention in self._narrowed:
            attention.fused = on


def predicted_flops(model: LoadedModel, context: int) -> int:
    """FLOPs of one decoded token with `context` tokens in the cache, from the shapes of its layers;
    see `account.flops_per_token`.
    """
    return count_flops(model.network, context)


def cache_bytes(cache: Any) -> int:
    """Bytes of all keys and values that a KV cache holds; of rounded ones, codes and grids. Layers
    that read those of an earlier one hold none.
    """
    return sum(map(_layer_bytes, cache.layers))


def _layer_bytes(layer: Any) -> int:
    if isinstance(layer, QuantisedLayer):
        return layer.nbytes
    return 0 if layer.keys is None else int(layer.keys.nbytes + layer.values.nbytes)


def bytes_on_disk(model: LoadedModel) -> int | None:
    """Of the safetensors files in the model's folder; None where they are gone or hold another
    model, the one it was made of.
    """
    try:
        files = weight_files(model.folder)
    except InputError:
        return None
    return (
        sum(file.stat().st_size for file in files)
        if fingerprint(model.folder, files) == model.fingerprint
        else None
    )


def measure_speed(
    models: Sequence[LoadedModel],
    prompt: int | None = None,
    new: int | None = None,
    rounds: int = 5,
    progress: Progress | None = None,
    batch: int = 1,
) -> list[Speed]:
    """Prefill and decode speed of each model, taking turns in every round, so that a busy machine
    slows all of them alike.

    prompt tokens are read in one pass, then `new` ones are decoded greedily: 128 and 32, or three
    quarters and one of the shortest context. batch: sequences at once, whose tokens all count. One
    round before the first is not counted. Raises InputError where a context holds fewer, and for a
    batch below 1.
    """
    check_least("batch", batch, 1)
    progress, context = (
        progress or silent,
        min((model.context or 160 for model in models), default=160),
    )
    prompt, new = prompt or min(128, context * 3 // 4), new or min(32, context // 4)
    for model in models:
        model.check_length(prompt + new)
    times: list[list[tuple[float, float]]] = [[] for _ in models]
    peaks: list[int | None] = [None] * len(models)
    for turn in range(rounds + 1):
        progress("speed", turn, rounds + 1)
        for i, model in enumerate(models):
            reset_peak(model.device)
            result = _time(model, _prompt(model, prompt, batch), new)
            if turn:
                times[i].append(result)
                peaks[i] = max(filter(None, (peaks[i], read_peak(model.device))), default=None)
    progress("speed", rounds + 1, rounds + 1)
    return [
        Speed(
            model.name,
            batch * prompt / statistics.median(prefill for prefill, _ in own),
            batch * new / statistics.median(decode for _, decode in own),
            peak,
            "cuda" if model.device.type == "cuda" else "process",
            rounds,
        )
        for model, own, peak in zip(models, times, peaks, strict=True)
    ]


def _time(model: LoadedModel, prompt: Tensor, new: int) -> tuple[float, float]:
    """Seconds of one prefill and of `new` decoded tokens after it."""
    # By its place: of a slice of several sequences, which does not lie in one piece, torch takes
    # the product with the head sequence by sequence, with a copy of the head for each
    last = torch.tensor([prompt.shape[1] - 1], device=model.device)
    begin = seconds_now(model.device)
    with torch.inference_mode():
        out, cache = cached(model.network, prompt, None, logits_to_keep=last)
        between = seconds_now(model.device)
        for _ in range(new):
            token = out.logits[:, -1:].argmax(-1)
            out, cache = cached(model.network, token, cache, logits_to_keep=1)
    return between - begin, seconds_now(model.device) - between


def _prompt(model: LoadedModel, tokens: int, batch: int = 1) -> Tensor:
    """Any tokens, [batch, tokens]: what they say changes no cost."""
    rows = model.network.get_input_embeddings().num_embeddings
    return torch.randint(rows, (batch, tokens), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )


@torch.inference_mode()
def _forward(model: LoadedModel, tokens: Tensor, cache: Any = None) -> Any:
    return cached(model.network, tokens, cache)[1]


def reset_peak(device: torch.device) -> None:
    """Forget the highest memory so far.

    On a CPU that is Linux's own mark; elsewhere it stays, and `read_peak` is that of the process.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_peak(device: torch.device) -> int | None:
    """Bytes: the CUDA allocator's highest, or the highest resident size of this process; None
    where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return None
