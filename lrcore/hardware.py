"""What a model computes on: the processor or GPU, and how much of its memory is free."""

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .memory import memory_left

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Hardware:
    """A device. kind: "CPU", "GPU" or that of torch; name: of the chip, "" where nobody says;
    free, total: bytes of memory that this process may still take, and of how many; None where
    nobody says.
    """

    kind: str
    name: str
    free: int | None = None
    total: int | None = None


def hardware(device: str) -> Hardware:
    """What is behind a device of torch, such as "cpu" or "cuda:0", as it is at this moment."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return Hardware("CPU", _processor(), *(memory_left() or (None, None)))
    if kind == "mps":  # it shares the machine's memory
        return Hardware("GPU", f"{_processor()} (Metal)", *(memory_left() or (None, None)))
    if kind != "cuda":
        return Hardware(kind.upper(), "")
    import torch

    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return Hardware("GPU", torch.cuda.get_device_name(device), free, total)


def wait_for(device: "torch.device") -> None:
    """Until a device has done what it was given, before time is read. The CPU always has."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_now(device: "torch.device") -> float:
    """The time in seconds, of no known origin, once a device has done what it was given."""
    wait_for(device)
    return time.perf_counter()


def _processor() -> str:
    """As the system names it; of a machine that names none, its architecture."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = next(line for line in lines if line.startswith("model name"))
        return named.partition(":")[2].strip()
    return platform.processor() or platform.machine()
