"""A simulated device other than the CPU, with tensors stored in memory.

PyTorch knows it as `pretended`, like the device of a driver. An operation on tensors of both
devices fails, as on a GPU, and transfers that wait for the device are counted. Copies in a stream
arrive when the computation has waited for the stream. In other respects the device is not like a
GPU.
"""

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration

NAME = "pretended"
WAITS = ("_local_scalar_dense", "nonzero", "masked_select")
MOVES = ("copy_", "_to_copy", "to")  # operations with tensors of both devices


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """Hooks that hide the device from libraries that use any available accelerator."""

    def is_available(self) -> bool:
        return False

    def has_primary_context(self, index: int) -> bool:
        del index
        return True

    def is_built(self) -> bool:
        return True


class Stream:
    """Stream of copies, performed when another stream waits for this one. A copy is refused unless
    the stream has waited since, because its memory may be in use.
    """

    local = threading.local()  # `now`: the stream of a thread

    def __init__(self, device=None) -> None:
        del device
        self.copies, self.has_waited = [], False

    def wait_stream(self, stream: "Stream") -> None:
        for copy in stream.copies:
            copy()
        stream.copies, stream.has_waited, self.has_waited = [], False, True

    def add(self, tensor: Tensor, copy) -> None:
        """Add a copy into a tensor."""
        del tensor
        if not self.has_waited:
            raise RuntimeError("a copy into memory that may be in use")
        self.copies.append(copy)


class _Module(backend_registration._DummyBackendModule):
    Stream, _computation = Stream, Stream()

    def is_available(self) -> bool:
        return False

    def current_stream(self, device=None) -> Stream:
        del device
        return self._computation

    @contextmanager
    def stream(self, stream: Stream):
        Stream.local.now = stream
        try:
            yield
        finally:
            Stream.local.now = None


backend_registration._setup_privateuseone_for_python_backend(NAME, _Module(), _Hooks())
ELSEWHERE = torch.device(NAME, 0)


class Away(Tensor):
    """Tensor of the simulated device; `cpu_tensor` has its values."""

    cpu_tensor: Tensor

    @staticmethod
    def __new__(cls, cpu_tensor: Tensor):
        away = Tensor._make_wrapper_subclass(
            cls,
            cpu_tensor.size(),
            strides=cpu_tensor.stride(),
            storage_offset=cpu_tensor.storage_offset(),
            dtype=cpu_tensor.dtype,
            device=ELSEWHERE,
        )
        away.cpu_tensor = cpu_tensor
        return away

    def __init__(self, cpu_tensor: Tensor) -> None:
        """Do nothing: `__new__` sets `cpu_tensor`, which a subclass may need earlier."""

    def __repr__(self, **_):
        return f"Away({self.cpu_tensor})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class Device(TorchFunctionMode):
    """Mode in which tensors of the simulated device can be created and used; a nested mode serves
    another thread while the first one waits.

    float64: whether the device supports it, unlike Apple's. waits, kernels: by operation, how often
    it waited for the device, and how often it ran there without being a view.
    """

    current: "Device | None" = None

    def __init__(self, float64: bool = True) -> None:
        super().__init__()
        self.float64, self.waits, self.kernels = float64, Counter[str](), Counter[str]()

    def __enter__(self):
        self.outer, Device.current = Device.current, self
        return super().__enter__()

    def __exit__(self, *raised):
        Device.current = self.outer
        super().__exit__(*raised)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _is_elsewhere(kwargs.get("device")) and not any(
            isinstance(leaf, Tensor) for leaf in _leaves((args, kwargs))
        ):
            # PyTorch creates some tensors in steps that a driver in Python does not support
            return func(*args, **kwargs | {"device": "cpu"}).to(ELSEWHERE)
        if args and isinstance(args[0], Away):
            device_tensor = args[0]
            if func in (Tensor.untyped_storage, Tensor.data_ptr):
                return func(device_tensor.cpu_tensor)
            if func == Tensor.data.__set__:
                device_tensor.cpu_tensor = args[1].cpu_tensor
            if func is Tensor.tolist:
                return device_tensor.cpu().tolist()
            if func is Tensor.__getitem__ and isinstance(args[1], tuple):
                chosen = (torch.tensor(i).to(ELSEWHERE) if type(i) is list else i for i in args[1])
                args = (device_tensor, tuple(chosen))
        return func(*args, **kwargs)


# Arguments and results are tuples, lists and dicts of values. Walking them directly is faster than
# PyTorch's trees, and this runs for each operation.
def _leaves(value) -> list:
    if isinstance(value, tuple | list):
        return [leaf for entry in value for leaf in _leaves(entry)]
    if isinstance(value, dict):
        return [leaf for entry in value.values() for leaf in _leaves(entry)]
    return [value]


def _mapped(function, value):
    if isinstance(value, dict):
        return {key: _mapped(function, entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        entries = [_mapped(function, entry) for entry in value]
        is_named = isinstance(value, tuple) and hasattr(value, "_fields")
        return type(value)(*entries) if is_named else type(value)(entries)
    return function(value)


def _is_elsewhere(device) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(func, args, kwargs):
    """Run an operation with a tensor or a result on the simulated device."""
    mode, name = Device.current, func.overloadpacket.__name__
    if mode is None:
        raise RuntimeError(f"{func} outside of Device")
    leaves = _leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    away = any(isinstance(tensor, Away) for tensor in tensors)
    cpu_tensors = [tensor for tensor in tensors if not isinstance(tensor, Away) and tensor.dim()]
    if away and cpu_tensors and name not in MOVES:
        raise RuntimeError(f"{name}: tensors of the device and of the CPU, {cpu_tensors[0].shape}")
    is_on_device = _is_elsewhere(devices[0]) if devices else away
    stream = getattr(Stream.local, "now", None)
    if name == "copy_" and away and stream is not None:
        stream.add(tensors[0], partial(func, *_mapped(_to_cpu, args), **_mapped(_to_cpu, kwargs)))
        return tensors[0]
    if away and (name in WAITS or not is_on_device):
        mode.waits[name] += 1
    if (away or is_on_device) and not func.is_view:
        mode.kernels[name] += 1
    out = func(*_mapped(_to_cpu, args), **_mapped(_to_cpu, kwargs))
    if "out" in kwargs and away:
        (filled,) = _leaves(kwargs["out"])
        if filled.shape != filled.cpu_tensor.shape:
            raise RuntimeError(f"{name} resizes its result, which is not simulated")
        return filled
    if name.endswith("_") and not name.startswith("_") and away:
        return tensors[0]
    if not is_on_device:
        return out
    # a view of an inference tensor is one, in any mode
    normal = func.is_view and not all(tensor.is_inference() for tensor in tensors)
    with torch.inference_mode(torch.is_inference_mode_enabled() and not normal):
        return _mapped(lambda value: _to_device(value, mode, name), out)


def _to_cpu(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.cpu_tensor if isinstance(value, Away) else value


def _to_device(value, mode: Device, name: str):
    if not isinstance(value, Tensor):
        return value
    if value.dtype in (torch.float64, torch.complex128) and not mode.float64:
        raise TypeError(f"{name}: this device has no {value.dtype}")
    return Away(value)


_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")


def moved(value):
    """Return a tree of dataclasses, mappings and sequences with its tensors on the simulated
    device.
    """
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
