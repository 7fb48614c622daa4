"""Where numbers of 64 bits are: on a tensor's own device, or on the CPU where that has none.

Moments are summed, and matrices decomposed, in float64. Apple's GPUs have no float64: there the
model itself runs on the GPU, and what needs float64 goes to the CPU, which shares its memory.
"""

import torch
from torch import Tensor

WITHOUT_FLOAT64 = {"mps"}  # types of devices


def exact_device(device: torch.device | str) -> torch.device:
    """The device that computes in float64 for tensors of `device`: itself, or the CPU."""
    own = torch.device(device)
    return torch.device("cpu") if own.type in WITHOUT_FLOAT64 else own


def exact(x: Tensor) -> Tensor:
    """x in float64, on the device that computes so. [...] -> [...]."""
    return x.to(exact_device(x.device)).double()


def exact_sum(x: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """The sum over dimensions `dim`, all of them for None, in float64. [...] -> the others."""
    own = x.to(exact_device(x.device))
    total: Tensor = own.sum(dim, dtype=torch.float64)
    return total
