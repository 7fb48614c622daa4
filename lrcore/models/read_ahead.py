"""Double buffering of offloaded layers: while one computes, the next one comes to the device.

A thread reads the next layer's files into pinned memory, from which a stream beside that of the
computation copies it. On the CPU nothing is read ahead: it would take the cores that compute.
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

from ..tensor_files import StoredTensor
from ..threads import take_one
from .architectures import decoder_layers
from .offload import PLACE, Offloaded

STREAMS = {"cuda", "xpu"}  # types of devices that copy in one stream while another computes


def bytes_at_once(network: PreTrainedModel) -> int:
    """What the offloaded layers take of the device while they are run one after another: the
    largest, and where the next is read ahead, the two largest. 0 for a network in memory.
    """
    places = _places(network)
    sizes = sorted(sum(one.nbytes for one in set(place.tensors.values())) for place in places)
    return sum(sizes[-1 - _can_be(places) :])


@contextmanager
def reading_ahead(*networks: PreTrainedModel) -> Iterator[None]:
    """Inside, this thread runs the offloaded layers of each network in their order, once or again
    and again; the layer after the one that was loaded last is read while that one computes.

    Results are the same to the bit. Of each network at most one further layer is on the device.
    No effect on networks in memory, on devices without streams, and where a network is read ahead
    already.
    """
    with ExitStack() as stack:
        for network in networks:
            places = _places(network)
            if _can_be(places) and places[0].ahead is None:
                pool = stack.enter_context(ThreadPoolExecutor(1, "read-ahead", take_one))
                stack.callback(ReadAhead(places, pool).end)
        yield


def _places(network: PreTrainedModel) -> list[Offloaded]:
    layers = decoder_layers(network)
    return [getattr(layer, PLACE) for layer in layers if hasattr(layer, PLACE)]


def _can_be(places: Sequence[Offloaded]) -> bool:
    """Whether layers are read ahead."""
    return len(places) > 1 and places[0].device.type in STREAMS


@dataclass(eq=False)
class _Coming:
    """A layer on its way.

    of: the places that it is read from, by whose identity it is known: a layer that was written
    anew has others. tensors [*shape]: filled in the stream that copies.
    """

    of: Mapping[str, StoredTensor]
    tensors: dict[StoredTensor, Tensor]
    unwanted: threading.Event = field(default_factory=threading.Event)
    filled: "Future[None]" = field(default_factory=Future)


class ReadAhead:
    """Layers in the order of `places`, the first after the last, for the thread that made this."""

    def __init__(self, places: Sequence[Offloaded], pool: ThreadPoolExecutor) -> None:
        self._after = dict(zip(places, [*places[1:], places[0]], strict=True))
        self._pool, self._thread = pool, threading.get_ident()
        self._device = places[0].device
        self._module: Any = torch.get_device_module(self._device)
        self._stream = self._module.Stream(device=self._device)
        self._coming: _Coming | None = None
        for place in places:
            place.ahead = self

    def end(self) -> None:
        """Read nothing ahead any more, and forget what was."""
        for place in self._after:
            place.ahead = None
        self._drop()

    def take(self, place: Offloaded) -> dict[StoredTensor, Tensor]:
        """The tensors [*shape] of a layer if they were read ahead, else nothing: then they are to
        be read, which also raises anew what reading ahead did.
        """
        coming = self._coming
        if not self._is_ours() or coming is None or coming.of is not place.tensors:
            return {}
        tensors = self._settle(coming)
        return tensors if coming.filled.exception() is None else {}

    def begin_after(self, place: Offloaded) -> None:
        """Begin with the layer after this one, whose tensors are loaded, unless it is on its way;
        not where the device has no memory for it.
        """
        if not self._is_ours():
            return
        wanted, coming = self._after[place].tensors, self._coming
        if coming is not None and coming.of is wanted:
            return
        self._drop()
        try:
            # not those of inference, which another thread could not fill
            with torch.inference_mode(False):
                tensors = {
                    stored: torch.empty(stored.shape, dtype=stored.dtype, device=self._device)
                    for stored in wanted.values()
                }
        except torch.OutOfMemoryError:
            return
        # memory of a layer before may be among it, which is still being computed with
        self._stream.wait_stream(self._module.current_stream(self._device))
        coming = _Coming(wanted, tensors)
        coming.filled = self._pool.submit(self._fill, coming)
        self._coming = coming

    def _drop(self) -> None:
        if self._coming is not None:
            self._coming.unwanted.set()
            self._settle(self._coming)

    def _is_ours(self) -> bool:
        return threading.get_ident() == self._thread

    def _settle(self, coming: _Coming) -> dict[StoredTensor, Tensor]:
        """Wait until all copies are in their stream, and let the computation wait for them: it may
        use the tensors then, or their memory for others.
        """
        wait([coming.filled])
        self._module.current_stream(self._device).wait_stream(self._stream)
        tensors = dict(coming.tensors)
        coming.tensors.clear()  # the pool may hold `coming` a little longer
        self._coming = None
        return tensors

    @torch.inference_mode(False)
    @torch.no_grad()
    def _fill(self, coming: _Coming) -> None:
        pinned = torch.accelerator.is_available()
        with self._module.stream(self._stream):
            for stored, tensor in coming.tensors.items():
                if coming.unwanted.is_set():
                    raise CancelledError
                here = torch.empty(stored.shape, dtype=stored.dtype, pin_memory=pinned)
                stored.read_into(here)
                # torch keeps pinned memory until what is copied from it has been
                tensor.copy_(here, non_blocking=True)
