"""The GPUs of this machine that share the work: their choice, and a worker for each."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

import torch

from ...system.errors import InputError, quoted
from ...system.units import workers
from .ray_engine import on_local_ray

AUTO, ALL = "auto", "all"
SHARED = ("auto", "cuda")  # devices of a recipe that do not name a single GPU


@contextmanager
def on_gpus(gpus: str = AUTO, device: str = "auto") -> Iterator[None]:
    """Run the work of this thread on several GPUs of this machine within the context.

    This covers calibration, factorization, probes, evaluation and sweeps, as `on_cluster` does, and
    results differ from those of a single GPU as there. Ray is started on this machine, with a
    process per GPU, and stopped at the end. Load the model within the context: it is then on the
    first of the GPUs.

    gpus: "all"; a number, for the first GPUs; indices such as "0,2"; or "auto": all if there are
    several and Ray is installed, and the workers of the context around this one otherwise. GPUs
    that CUDA_VISIBLE_DEVICES hides do not count. device: that of the recipe. Raises InputError for
    GPUs that this machine does not have, a device that is a single GPU or none, and if Ray is not
    installed or does not start.
    """
    indices = _indices(gpus, device)
    if not indices:
        yield
        return
    with torch.cuda.device(indices[0]) if indices[0] else nullcontext():
        if len(indices) == 1:
            yield
        else:
            names = _names()
            with on_local_ray([names[index] for index in indices]):
                yield


def about_unused(gpus: str = AUTO, device: str = "auto") -> str:
    """Return why `on_gpus` uses a single one of several GPUs, if Ray is missing; otherwise ""."""
    if not _is_shared(gpus, device) or find_spec("ray"):
        return ""
    return (
        f"One of {torch.cuda.device_count()} GPUs is used. Run `pip install 'ray[default]'` (the "
        "extra `cluster` of this package) to use all, or omit this note with --gpus 1."
    )


def _is_shared(gpus: str, device: str) -> bool:
    """Return whether "auto" stands for all GPUs."""
    is_chosen = gpus == AUTO and device in SHARED and not workers().apart
    return is_chosen and torch.cuda.device_count() > 1


def _indices(gpus: str, device: str) -> Sequence[int]:
    """Return the indices of the chosen GPUs among the visible ones; none if `gpus` is "auto" and
    does not stand for all.
    """
    count = torch.cuda.device_count()
    if gpus == AUTO:
        return range(count) if _is_shared(gpus, device) and find_spec("ray") else ()
    if device not in SHARED:
        raise InputError(f"Several GPUs are used with device auto or cuda; got {quoted(device)}.")
    parts = [part.strip() for part in gpus.split(",")]
    if gpus != ALL and not all(re.fullmatch("[0-9]{1,4}", part) for part in parts):
        raise InputError(f"{quoted(gpus)} is not valid. Enter all, a number, or indices as in 0,2.")
    if gpus == ALL:
        indices = list(range(count))
    else:
        numbers = [int(part) for part in parts]
        indices = numbers if len(numbers) > 1 else list(range(numbers[0]))
    if not indices or max(indices) >= count or len(set(indices)) < len(indices):
        raise InputError(
            f"{quoted(gpus)} is not a choice of the {count} GPUs that are visible on this machine. "
            f"Enter all, a number, or different indices below {count}."
        )
    return indices


def _names() -> list[str]:
    """Return the visible GPUs as entries of CUDA_VISIBLE_DEVICES, by index."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in visible.split(",")]
