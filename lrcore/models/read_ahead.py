"""Double buffering of offloaded layers: the next layer is copied while the current layer computes.

A thread reads the next layer's files into pinned memory, and a separate stream copies it to the
device. On the CPU no layer is read ahead, since reading would take cores from the computation.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..system.tensor_files import StoredTensor
from ..system.threads import take_one
from .architectures import decoder_layers
from .offload import ATTRIBUTE, Offloaded

STREAMS = {"cuda", "xpu"}  # device types that copy in a stream while another stream computes


def bytes_at_once(network: PreTrainedModel) -> int:
    """Return the bytes on the device that a pass over all offloaded layers needs.

    This is the size of the largest layer, or of the two largest if the next layer is read ahead,
    and 0 for a network in memory.
    """
    layers = _offloaded_layers(network)
    sizes = sorted(sum(t.nbytes for t in set(layer.tensors.values())) for layer in layers)
    return sum(sizes[-1 - _can_read_ahead(layers) :])


@contextmanager
def reading_ahead(*networks: PreTrainedModel) -> Iterator[None]:
    """Read offloaded layers ahead while the context is active.

    The calling thread runs the layers of each network in order, once or repeatedly. While a layer
    computes, the next layer is read. Results are the same to the bit, and each network has at most
    two layers on the device. No effect on networks in memory, on devices without streams, and on
    networks that are already read ahead.
    """
    with ExitStack() as stack:
        for network in networks:
            layers = _offloaded_layers(network)
            if _can_read_ahead(layers) and layers[0].ahead is None:
                pool = stack.enter_context(ThreadPoolExecutor(1, "read-ahead", take_one))
                stack.callback(ReadAhead(layers, pool).end)
        yield


def _offloaded_layers(network: PreTrainedModel) -> list[Offloaded]:
    layers = decoder_layers(network)
    return [getattr(layer, ATTRIBUTE) for layer in layers if hasattr(layer, ATTRIBUTE)]


def _can_read_ahead(layers: Sequence[Offloaded]) -> bool:
    """Return True if layers are read ahead."""
    return len(layers) > 1 and layers[0].device.type in STREAMS


@dataclass(eq=False)
class _PendingLayer:
    """A layer that is being read.

    of: its stored tensors, compared by identity: a layer that was written again has another
    mapping. tensors [*shape]: filled in the copying stream.
    """

    of: Mapping[str, StoredTensor]
    tensors: dict[StoredTensor, Tensor]
    unwanted: threading.Event = field(default_factory=threading.Event)
    filled: "Future[None]" = field(default_factory=Future)


class ReadAhead:
    """A reader of layers in the order of `layers`, cyclically, for the thread that creates it."""

    def __init__(self, layers: Sequence[Offloaded], pool: ThreadPoolExecutor) -> None:
        self._after = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._pool, self._thread = pool, threading.get_ident()
        self._device = layers[0].device
        self._module: Any = torch.get_device_module(self._device)
        self._stream = self._module.Stream(device=self._device)
        self._coming: _PendingLayer | None = None
        for layer in layers:
            layer.ahead = self

    def end(self) -> None:
        """Stop, and drop the layer that was read ahead."""
        for layer in self._after:
            layer.ahead = None
        self._drop()

    def pop_tensors(self, layer: Offloaded) -> dict[StoredTensor, Tensor]:
        """Return the tensors [*shape] of a layer if they were read ahead, otherwise {}.

        After {} the caller reads them, which raises any error of reading ahead again.
        """
        coming = self._coming
        if not self._is_ours() or coming is None or coming.of is not layer.tensors:
            return {}
        tensors = self._settle(coming)
        return tensors if coming.filled.exception() is None else {}

    def begin_after(self, layer: Offloaded) -> None:
        """Start to read the layer after a loaded layer, unless it is being read already.

        No effect if the device has too little memory.
        """
        if not self._is_ours():
            return
        next_tensors, coming = self._after[layer].tensors, self._coming
        if coming is not None and coming.of is next_tensors:
            return
        self._drop()
        try:
            # Another thread could not write to inference tensors.
            with torch.inference_mode(False):
                tensors = {
                    stored: torch.empty(stored.shape, dtype=stored.dtype, device=self._device)
                    for stored in next_tensors.values()
                }
        except torch.OutOfMemoryError:
            return
        # The new memory may be that of an earlier layer, with which the device still computes.
        self._stream.wait_stream(self._module.current_stream(self._device))
        coming = _PendingLayer(next_tensors, tensors)
        coming.filled = self._pool.submit(self._fill, coming)
        self._coming = coming

    def _drop(self) -> None:
        if self._coming is not None:
            self._coming.unwanted.set()
            self._settle(self._coming)

    def _is_ours(self) -> bool:
        return threading.get_ident() == self._thread

    def _settle(self, coming: _PendingLayer) -> dict[StoredTensor, Tensor]:
        """Wait until all copies are in their stream, and make the computation wait for them.

        Afterwards the computation may use the tensors, or their memory for other tensors.
        """
        wait([coming.filled])
        self._module.current_stream(self._device).wait_stream(self._stream)
        tensors = dict(coming.tensors)
        coming.tensors.clear()  # the pool may hold `coming` for a short time
        self._coming = None
        return tensors

    @torch.inference_mode(False)
    @torch.no_grad()
    def _fill(self, coming: _PendingLayer) -> None:
        can_be_pinned = torch.accelerator.is_available()
        with self._module.stream(self._stream):
            for stored, tensor in coming.tensors.items():
                if coming.unwanted.is_set():
                    raise CancelledError
                pinned_tensor = torch.empty(
                    stored.shape, dtype=stored.dtype, pin_memory=can_be_pinned
                )
                stored.read_into(pinned_tensor)
                # torch keeps the pinned memory until the copy has finished
                tensor.copy_(pinned_tensor, non_blocking=True)
