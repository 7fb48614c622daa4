"""A device that is not the CPU, pretended: its tensors say `meta` and hold their values in memory.

An operation on tensors of both devices fails, as it would on a GPU, and every transfer that waits
for the device is counted. Nothing else is like a GPU.
"""

from collections import Counter
from dataclasses import fields, is_dataclass, replace

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")
WAITS = ("_local_scalar_dense", "nonzero", "masked_select")


class Away(Tensor):
    """A tensor of the pretended device; `here` has its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor):
        return Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), dtype=here.dtype, device=ELSEWHERE
        )

    def __init__(self, here: Tensor) -> None:
        self.here = here

    def __repr__(self, **_):
        return f"Away({self.here})"

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} outside of Device")


class _FromLists(TorchFunctionMode):
    """`torch.tensor` fills a tensor without any operation that a dispatch mode would see."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") == ELSEWHERE:
            return Away(func(*args, **kwargs | {"device": "cpu"}))
        return func(*args, **kwargs)


class Device(TorchDispatchMode):
    """Inside, tensors of the pretended device can be made and computed with.

    waits: how often the device was waited for, by operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._from_lists = _FromLists()

    def __enter__(self):
        self._from_lists.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self._from_lists.__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
        away = any(isinstance(one, Away) for one in given)
        wanted = kwargs.get("device")
        stays = [one for one in given if not isinstance(one, Away) and one.dim()]
        if away and stays and name not in ("copy_", "_to_copy"):
            raise RuntimeError(f"{name}: tensors of the device and of the CPU, {stays[0].shape}")
        goes = away if wanted is None else torch.device(wanted) == ELSEWHERE
        if away and (any(one in name for one in WAITS) or not goes):
            self.waits[name] += 1
        if wanted is not None:
            kwargs["device"] = "cpu"
        outputs = kwargs.get("out")
        args, kwargs = tree_map(lambda t: t.here if isinstance(t, Away) else t, (args, kwargs))
        out = func(*args, **kwargs)
        if "out" in kwargs and away:
            return tree_flatten(outputs)[0][0]
        if name.endswith("_") and not name.startswith("_") and away:
            return given[0]
        return tree_map(lambda t: Away(t) if isinstance(t, Tensor) and goes else t, out)


def moved(value):
    """A tree of dataclasses, mappings and sequences with its tensors on the pretended device."""
    if isinstance(value, Tensor):
        return Away(value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: moved(getattr(value, f.name)) for f in fields(value) if f.init}
        return replace(value, **changed)
    if isinstance(value, dict):
        return {key: moved(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(entry) for entry in value)
    return value
