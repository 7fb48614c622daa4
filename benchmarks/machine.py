"""The machine of a benchmark, and the folder of the project."""

import platform
from contextlib import suppress
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """Return the processor, the number of threads and the version of torch."""
    version = torch.__version__.partition("+")[0]
    count = torch.get_num_threads()
    return f"{processor()}, {count} {'thread' if count == 1 else 'threads'}, torch {version}"


def processor() -> str:
    """Return the processor name on Linux, such as "AMD EPYC", or the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
