"""Reading layers ahead on a device with streams: timing, results and cleanup."""

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pretended_device import NAME, Away, Device, Stream
from transformers import PreTrainedModel

import lrcore
from lrcore.compression.calibration.working_memory import calibration_memory
from lrcore.layers.layer import Linear
from lrcore.models import read_ahead
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.offload import ATTRIBUTE
from lrcore.models.read_ahead import bytes_at_once, reading_ahead
from lrcore.system.errors import Cancelled
from lrcore.system.tensor_files import StoredTensor

TOKENS = torch.arange(3, 23).view(2, 10)
LONG = 60  # seconds; a longer wait fails the test


class Seen:
    """Record the layers of tensors read on demand (`late`) or ahead (`early`)."""

    def __init__(self) -> None:
        self.late, self.early = [], []
        self.changed = threading.Condition()
        self.tensors: list[tuple[int, weakref.ref]] = []
        self.streams: set[Stream] = set()

    def layers_held(self) -> set[int]:
        gc.collect()
        return {layer for layer, tensor in self.tensors if tensor() is not None}

    def wait_for(self, layer: int, tensors: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.early.count(layer) >= tensors, LONG)


def layer_of(stored: StoredTensor) -> int:
    return int(stored.name.split(".layers.")[1].split(".")[0])


@pytest.fixture
def seen(monkeypatch) -> Seen:
    seen = Seen()
    read, read_into, add = StoredTensor.read, StoredTensor.read_into, Stream.add
    last = threading.local()

    def reads(stored, device="cpu"):
        if ".layers." in stored.name:
            seen.late.append(layer_of(stored))
        return read(stored, device)

    def reads_into(stored, tensor):
        read_into(stored, tensor)
        last.layer = layer_of(stored)

    def adds(stream, tensor, copy):
        add(stream, tensor, copy)
        seen.streams.add(stream)
        seen.tensors.append((last.layer, weakref.ref(tensor)))
        with seen.changed:
            seen.early.append(last.layer)
            seen.changed.notify_all()

    monkeypatch.setattr(StoredTensor, "read", reads)
    monkeypatch.setattr(StoredTensor, "read_into", reads_into)
    monkeypatch.setattr(Stream, "add", adds)
    return seen


@pytest.fixture
def device(monkeypatch) -> Iterator[Device]:
    monkeypatch.setattr(read_ahead, "STREAMS", {NAME})
    with Device() as device:
        yield device


@pytest.fixture
def model(device, tiny_llama) -> lrcore.LoadedModel:
    return lrcore.load(str(tiny_llama), dtype="bfloat16", device=NAME, offload=True)


def logits(model: lrcore.LoadedModel) -> torch.Tensor:
    return logits_of(model.network)


@torch.inference_mode()
def logits_of(network: PreTrainedModel) -> torch.Tensor:
    return network(TOKENS.to(network.device), use_cache=False).logits.cpu()


def threads() -> list[str]:
    return [entry.name for entry in threading.enumerate() if entry.name.startswith("read-ahead")]


@contextmanager
def nothing_left(model: lrcore.LoadedModel, seen: Seen) -> Iterator[None]:
    """Check that no thread, copy, tensor or open file remains after the context."""
    yield
    assert not any(stream.copies for stream in seen.streams)
    assert not threads()
    assert not seen.layers_held()
    assert all(getattr(layer, ATTRIBUTE).ahead is None for layer in decoder_layers(model.network))
    if Path("/proc/self/fd").is_dir():
        opened = (os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists())
        assert not [name for name in opened if name.endswith(".safetensors")]


def test_next_layer_is_read_while_a_layer_computes(model, seen):
    before = logits(model)
    seen.late.clear()
    layers, read_layers = decoder_layers(model.network), []
    tensor_count = len(getattr(layers[0], ATTRIBUTE).tensors)

    def check_next_layer(layer, _):
        index = list(layers).index(layer)
        following = (index + 1) % len(layers)
        seen.wait_for(following, (read_layers.count(following) + 1) * tensor_count)
        assert all(isinstance(entry, Away) for entry in layer.parameters())
        assert seen.layers_held() <= {index, following}
        read_layers.append(following)

    for layer in layers:
        layer.register_forward_pre_hook(check_next_layer)
    with nothing_left(model, seen), reading_ahead(model.network):
        first, second = logits(model), logits(model)
        assert threads() == ["read-ahead_0"]
    assert torch.equal(first, before)
    assert torch.equal(second, before)
    assert read_layers == [1, 2, 0, 1, 2, 0]
    assert set(seen.late) == {0}
    assert len(seen.late) == tensor_count


@pytest.mark.parametrize("work", ["calibrate", "evaluate", "compare", "compress"])
def test_work_on_all_layers_reads_ahead(
    work, device, seen, tiny_llama, story_file, tmp_path, monkeypatch
):
    """Results and waits for the device are the same with and without reading ahead."""
    results, waits = [], []
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2, refit="on"
    )
    for streams in (set(), {NAME}):
        monkeypatch.setattr(read_ahead, "STREAMS", streams)
        monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / str(bool(streams))))
        model = lrcore.load(str(tiny_llama), dtype="bfloat16", device=NAME, offload=True)
        seen.late.clear()
        device.waits.clear()
        with nothing_left(model, seen):
            results.append(WORK[work](model, recipe))
        waits.append(device.waits.copy())
        assert bool(seen.early) == bool(streams)
    assert results[0] == results[1]
    assert waits[0] == waits[1]


def calibrated(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> list[bytes]:
    folder = lrcore.calibrate(model, recipe).folder
    return [file.read_bytes() for file in sorted(folder.glob("*.safetensors"))]


def compressed(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> list[float]:
    return logits(lrcore.compress(model, recipe)).flatten().tolist()


def evaluated(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> float:
    return lrcore.evaluate(model, recipe.data, samples=4, seq_len=32, batch=2).nll


def compared(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> float:
    return lrcore.compare(model, model, recipe.data, samples=4, seq_len=32, batch=2).dense.nll


WORK = {
    "calibrate": calibrated,
    "evaluate": evaluated,
    "compare": compared,
    "compress": compressed,
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this thread", "another thread"])
def test_rewritten_layer_is_not_read_from_the_stale_copy(elsewhere, model, seen):
    network = clone(model.network)
    dense = read_layer(network, 1)
    zero = Linear(torch.zeros_like(dense.attention.o.weight))
    changed = dense.with_matrices(o=zero)
    tensor_count = len(getattr(decoder_layers(network)[1], ATTRIBUTE).tensors)

    def write() -> None:
        with Device():
            write_layer(network, changed)

    with reading_ahead(network):
        read_layer(network, 0)
        seen.wait_for(1, tensor_count)
        seen.late.clear()
        if elsewhere:
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
            assert seen.late == [1] * tensor_count
        else:
            write()
            assert not seen.late
            read_layer(network, 0)
        assert not read_layer(network, 1).attention.o.weight.cpu().any()
        read_layer(network, 0)
        assert not read_layer(network, 1).attention.o.weight.cpu().any()
    assert read_layer(model.network, 1).attention.o.weight.cpu().any()


def test_nothing_remains_after_an_error_or_cancellation(model, seen, story_file):
    def stop(stage: str, done: int, total: int) -> None:
        if done:
            raise Cancelled

    with nothing_left(model, seen), pytest.raises(Cancelled):
        lrcore.evaluate(model, str(story_file), samples=4, seq_len=32, batch=1, progress=stop)
    handle = decoder_layers(model.network)[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with nothing_left(model, seen), pytest.raises(ZeroDivisionError):
        lrcore.evaluate(model, str(story_file), samples=4, seq_len=32)
    handle.remove()
    assert 2 in seen.early


def test_failed_read_ahead_falls_back_to_reading_on_demand(model, seen, monkeypatch):
    def fails(*_):
        raise OSError("the disk is gone")

    before = logits(model)
    monkeypatch.setattr(StoredTensor, "read_into", fails)
    with nothing_left(model, seen), reading_ahead(model.network):
        assert torch.equal(logits(model), before)
    monkeypatch.setattr(StoredTensor, "read", fails)
    with (
        nothing_left(model, seen),
        reading_ahead(model.network),
        pytest.raises(OSError, match="the disk is gone"),
    ):
        logits(model)
    assert not seen.early


def test_no_layer_is_read_ahead_without_device_memory(model, seen, monkeypatch):
    def full(*size, **options):
        if torch.device(options.get("device", "cpu")).type == NAME:
            raise torch.OutOfMemoryError
        return plain(*size, **options)

    before, plain = logits(model), torch.empty
    monkeypatch.setattr(torch, "empty", full)
    with reading_ahead(model.network):
        assert torch.equal(logits(model), before)
    assert not seen.early


def test_clones_and_other_threads_read_layers_separately(model, seen):
    before, made = logits(model), []
    tensor_count = len(getattr(decoder_layers(model.network)[0], ATTRIBUTE).tensors)

    def run_elsewhere() -> None:
        with Device(), reading_ahead(model.network):
            made.append(logits(model))

    with nothing_left(model, seen), reading_ahead(model.network):
        read_layer(model.network, 0)
        seen.wait_for(1, tensor_count)
        seen.late.clear()
        made.append(logits_of(clone(model.network)))
        thread = threading.Thread(target=run_elsewhere)
        thread.start()
        thread.join()
        assert seen.late == [layer for layer in (0, 1, 2, 0, 1, 2) for _ in range(tensor_count)]
        assert seen.layers_held() == {1}
    assert all(torch.equal(entry, before) for entry in made)


def test_networks_in_memory_and_on_the_cpu_are_not_read_ahead(tiny_llama, monkeypatch):
    for offload in (False, True):
        model = lrcore.load(str(tiny_llama), offload=offload)
        with reading_ahead(model.network):
            for layer in decoder_layers(model.network):
                assert getattr(getattr(layer, ATTRIBUTE, None), "ahead", None) is None
            logits(model)
            assert not threads()


def test_memory_of_calibration_includes_the_layer_read_ahead(tiny_llama, monkeypatch):
    of_layer = sum(
        entry.nbytes for entry in lrcore.load(str(tiny_llama)).network.model.layers[0].parameters()
    )
    results = [
        calibration_memory(lrcore.load(str(tiny_llama), offload=away).network, 4, 32, set()).layers
        for away in (False, True)
    ]
    monkeypatch.setattr(read_ahead, "STREAMS", {"cpu"})
    results.append(bytes_at_once(lrcore.load(str(tiny_llama), offload=True).network))
    assert results == [0, of_layer, 2 * of_layer]
