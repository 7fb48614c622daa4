"""Devices: names and free memory of processors and GPUs."""

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .memory import memory_limit

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Hardware:
    """A device.

    kind: "CPU", "GPU" or the type of the torch device. name: of the chip, "" if unknown. free,
    total: bytes of memory available to this process, None if unknown.
    """

    kind: str
    name: str
    free: int | None = None
    total: int | None = None


def hardware(device: str) -> Hardware:
    """Return the current state of a torch device, such as "cpu" or "cuda:0"."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return Hardware("CPU", _processor(), *(memory_limit() or (None, None)))
    if kind == "mps":  # shares the memory of the machine
        return Hardware("GPU", f"{_processor()} (Metal)", *(memory_limit() or (None, None)))
    if kind != "cuda":
        return Hardware(kind.upper(), "")
    import torch

    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return Hardware("GPU", torch.cuda.get_device_name(device), free, total)


def has_bfloat16_products(device: "torch.device") -> bool:
    """Return whether a device multiplies matrices faster in bfloat16 than in float32."""
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def wait_for(device: "torch.device") -> None:
    """Wait until a device has finished queued work, before a time measurement."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_now(device: "torch.device") -> float:
    """Return the time in seconds, with an arbitrary origin, after `wait_for`."""
    wait_for(device)
    return time.perf_counter()


def _processor() -> str:
    """Return the name of the processor, or the architecture if the system has no name."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        line = next(line for line in lines if line.startswith("model name"))
        return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
