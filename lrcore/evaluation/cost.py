"""Measured costs of a model: parameters, bytes on disk and in the KV cache, FLOPs, tokens per
second, peak memory.

FLOPs are counted by torch's counter for matrix products, two per multiply-add. They include the
scores of masked positions, but not experts in fused kernels. Speeds are comparable only within a
call of `measure_speed`, which alternates between the models.
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

from ..layers.modules.compressed import CompressedAttention
from ..models.kv_cache import QuantizedLayer, check_quantizable, forward_with_cache, quantized_cache
from ..models.load import LoadedModel
from ..models.mixer_state import state_tensors
from ..models.model_size import count_flops
from ..models.weights import fingerprint, weight_files
from ..system.errors import InputError
from ..system.hardware import seconds_now
from ..system.progress import Progress, silent
from ..system.settings import check_least


@dataclass(frozen=True)
class ModelCost:
    """Measured costs of a model.

    bytes_on_disk: size of the weight files; None for a compressed model that was not saved.
    kv_bytes_per_token: size of keys and values in the cache after a forward pass, divided by the
    number of tokens; layers with sliding windows cache fewer tokens. state_bytes: size of the
    states of linear attention, Mamba and convolutions in that cache. flops_prefill: per token of a
    prompt of `context` tokens. flops_decode: of a token after `context` tokens. flops_formula:
    flops_decode according to `predicted_flops`, which ignores sliding windows.
    """

    parameters: int
    bytes_on_disk: int | None
    kv_bytes_per_token: float
    state_bytes: int
    context: int
    flops_prefill: float
    flops_decode: float
    flops_formula: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Speed:
    """Medians over the rounds, in tokens per second.

    peak_memory: bytes, of the CUDA allocator ("cuda" in memory_of) or of the process with all
    loaded models ("process"); None if neither can be read.
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
    """Return the exact costs of a model.

    context: tokens of the prompt, and of the cache when a token is decoded. kv_bits: 8, 4 or 2 bits
    of a quantized cache, see `quantized_cache`. Its newest tokens are in full precision, so use a
    long context.

    Raises InputError for a context below 1 or above the positions of the model minus 1, for another
    value of kv_bits, and like `check_quantizable`.
    """
    check_least("context", context, 1)
    cache = None
    if kv_bits is not None:
        check_quantizable(model.size.state_bytes)
        cache = quantized_cache(kv_bits)
    model.check_length(context + 1)
    prompt = _prompt(model, context)
    with _FlopCounter(model) as counter:
        cache = _forward(model, prompt, cache)
    prefill = counter.get_total_flops() / context
    kv_bytes_per_token = cache_bytes(cache) / context
    states = sum(state.nbytes for layer in cache.layers for state in state_tensors(layer))
    with _FlopCounter(model) as counter:
        _forward(model, prompt[:, :1], cache)
    return ModelCost(
        parameters=model.size.parameters,
        bytes_on_disk=bytes_on_disk(model),
        kv_bytes_per_token=kv_bytes_per_token,
        state_bytes=states,
        context=context,
        flops_prefill=prefill,
        flops_decode=float(counter.get_total_flops()),
        flops_formula=float(predicted_flops(model, context)),
    )


class _FlopCounter(FlopCounterMode):
    """Counter of matrix products. Attention runs unfused, as two products, because the counter
    does not support the fused kernels of a CPU, and because fused attention pads with zeros.
    """

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(display=False)
        self._math_attention = sdpa_kernel(SDPBackend.MATH)
        modules = model.network.modules()
        self._compressed_attentions = [
            module for module in modules if isinstance(module, CompressedAttention)
        ]

    def __enter__(self) -> Self:
        self._set_fused(False)
        self._math_attention.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._math_attention.__exit__(*error)
        self._set_fused(True)

    def _set_fused(self, is_fused: bool) -> None:
        for attention in self._compressed_attentions:
            attention.fused = is_fused


def predicted_flops(model: LoadedModel, context: int) -> int:
    """Return the FLOPs of a decoded token with `context` cached tokens, from the layer shapes; see
    `account.flops_per_token`.
    """
    return count_flops(model.network, context)


def cache_bytes(cache: Any) -> int:
    """Return the bytes of all keys and values of a KV cache, with the keys of an indexer; for a
    quantized cache, of codes and grids. Layers that share the cache of an earlier layer have none.
    """
    return sum(map(_layer_bytes, cache.layers))


def _layer_bytes(layer: Any) -> int:
    if isinstance(layer, QuantizedLayer):
        return layer.nbytes
    held = (getattr(layer, name, None) for name in ("keys", "values", "indexer_keys"))
    return sum(int(states.nbytes) for states in held if states is not None)


def bytes_on_disk(model: LoadedModel) -> int | None:
    """Return the size of the safetensors files in the folder of the model.

    Returns None if the files are missing or contain another model, such as the dense model.
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
    """Return prefill and decode speed of each model.

    Each round measures all models, so that load on the machine affects them equally; a warm-up
    round is discarded. `prompt` tokens are read in a single pass, then `new` tokens are decoded
    greedily. The defaults are 128 and 32, or 3/4 and 1/4 of the shortest context. batch: number of
    sequences, all of which count. Raises InputError if a context is shorter than prompt + new, and
    for a batch below 1.
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
    for round_number in range(rounds + 1):
        progress("speed", round_number, rounds + 1)
        for i, model in enumerate(models):
            reset_peak(model.device)
            seconds = _time(model, _prompt(model, prompt, batch), new)
            if round_number:
                times[i].append(seconds)
                peaks[i] = max(filter(None, (peaks[i], read_peak(model.device))), default=None)
    progress("speed", rounds + 1, rounds + 1)
    return [
        Speed(
            model.name,
            batch * prompt / statistics.median(prefill for prefill, _ in model_times),
            batch * new / statistics.median(decode for _, decode in model_times),
            peak,
            "cuda" if model.device.type == "cuda" else "process",
            rounds,
        )
        for model, model_times, peak in zip(models, times, peaks, strict=True)
    ]


def _time(model: LoadedModel, prompt: Tensor, new: int) -> tuple[float, float]:
    """Return the seconds of a prefill and of the `new` tokens decoded after it."""
    # An index instead of a slice: the slice of several sequences is not contiguous, and torch
    # would multiply each sequence with a copy of the head.
    last_position = torch.tensor([prompt.shape[1] - 1], device=model.device)
    start = seconds_now(model.device)
    with torch.inference_mode():
        output, cache = forward_with_cache(
            model.network, prompt, None, logits_to_keep=last_position
        )
        prefill_end = seconds_now(model.device)
        for _ in range(new):
            token = output.logits[:, -1:].argmax(-1)
            output, cache = forward_with_cache(model.network, token, cache, logits_to_keep=1)
    return prefill_end - start, seconds_now(model.device) - prefill_end


def _prompt(model: LoadedModel, tokens: int, batch: int = 1) -> Tensor:
    """Return random tokens, [batch, tokens]; the cost does not depend on them."""
    rows = model.network.get_input_embeddings().num_embeddings
    return torch.randint(rows, (batch, tokens), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )


@torch.inference_mode()
def _forward(model: LoadedModel, tokens: Tensor, cache: Any = None) -> Any:
    return forward_with_cache(model.network, tokens, cache)[1]


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory.

    For a CPU this needs Linux; on other systems `read_peak` covers the lifetime of the process.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_peak(device: torch.device) -> int | None:
    """Return the peak of the CUDA allocator or of the resident memory of this process, in bytes.

    Returns None if the system does not report it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return None
