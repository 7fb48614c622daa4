"""Choice of the GPUs that share the work, and stages on another device than the CPU, with simulated
workers and a simulated device; `make cluster` uses Ray.
"""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pretended_device
import pytest
import torch
from pretended import Pretended, on
from pretended_device import NAME, Device

import lrcore
from lrcore.compression.evidence.probes import measure_divergences
from lrcore.runs.cluster import gpus, ray_engine
from lrcore.runs.cluster.gpus import about_unused, on_gpus
from lrcore.runs.cluster.pickling import pack, unpack


@pytest.fixture
def local(monkeypatch):
    """Simulate four GPUs, of which the last has no index; return the GPUs with a worker."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,5,GPU-9f")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__spec__=object()))
    started = []

    @contextmanager
    def start(names):
        started.extend(names)
        yield

    monkeypatch.setattr(gpus, "on_local_ray", start)
    return started


@pytest.mark.parametrize(
    ("chosen", "device", "names"),
    [
        ("auto", "auto", ["1", "3", "5", "GPU-9f"]),
        ("auto", "cuda", ["1", "3", "5", "GPU-9f"]),
        ("auto", "cpu", []),
        ("auto", "cuda:1", []),
        ("all", "auto", ["1", "3", "5", "GPU-9f"]),
        ("2", "cuda", ["1", "3"]),
        ("1", "auto", []),
        ("0, 3", "auto", ["1", "GPU-9f"]),
    ],
)
def test_the_chosen_gpus_have_workers(local, chosen, device, names) -> None:
    with on_gpus(chosen, device):
        assert local == names
    assert about_unused(chosen, device) == ""


def test_all_gpus_are_those_of_the_machine_without_the_variable(local, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with on_gpus("all"):
        assert local == ["0", "1", "2", "3"]


@pytest.mark.parametrize("chosen", ["5", "0", "0,4", "1,1", "first", "1,", "-1", "²", "9" * 5000])
def test_gpus_that_do_not_exist_are_refused(local, chosen) -> None:
    with pytest.raises(lrcore.InputError, match="Enter all, a number"), on_gpus(chosen):
        pass
    assert not local


def test_several_gpus_are_refused_for_a_single_device(local) -> None:
    with pytest.raises(lrcore.InputError, match="cuda:1"), on_gpus("all", "cuda:1"):
        pass
    assert lrcore.cli.main(["calibrate", "--gpus", "2", "--cluster", "auto"]) == 2
    assert not local


def test_a_cluster_is_not_replaced_by_the_gpus_of_this_machine(local) -> None:
    with on(Pretended(2)), on_gpus():
        assert not local


def test_missing_ray_leaves_one_gpu_and_names_the_extra(local, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gpus, "on_local_ray", ray_engine.on_local_ray)
    monkeypatch.setitem(sys.modules, "ray", None)
    with on_gpus():
        assert "extra `cluster`" in about_unused()
    assert lrcore.cli.main(["calibrate", "demo-llama", "--gpus", "all"]) == 2
    assert "extra `cluster`" in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "threads"), [(64, 2), (10, 1), (1, 1)])
def test_a_gpu_worker_has_its_share_of_the_cores_and_never_waits_for_one(
    cores, threads, monkeypatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    started = []

    def remote(**settings):
        started.append(settings)
        return lambda _: SimpleNamespace(remote=lambda *arguments: started.append(arguments))

    resources = {"GPU": 8.0, "CPU": float(cores)}
    ray = SimpleNamespace(
        nodes=lambda: [{"Alive": True, "Resources": resources}],
        available_resources=lambda: resources,
        remote=remote,
    )
    engine = ray_engine.RayEngine(ray)
    engine._start()
    assert engine.count == 8
    assert (started[0]["num_gpus"], started[0]["num_cpus"]) == (1, 0)
    assert started[1][-1] == threads


def test_tensors_are_received_on_the_device_of_the_receiver(monkeypatch) -> None:
    with Device():
        monkeypatch.setattr(pretended_device, "ELSEWHERE", torch.device(NAME, 1))
        sent = torch.arange(3.0).to(NAME)
        payload = pack((sent, sent.device, torch.arange(2)))
        monkeypatch.setattr(pretended_device, "ELSEWHERE", torch.device(NAME, 0))
        tensor, device, on_cpu = unpack(payload)
        assert (sent.device.index, tensor.device.index, device.index) == (1, 0, 0)
        assert tensor.tolist() == [0, 1, 2]
        assert on_cpu.device.type == "cpu"


def test_stages_on_a_device_equal_those_of_one_worker(
    tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=20, seq_len=32)
    results = []
    for number, engine in enumerate((Pretended(1), Pretended(2, dying=[0, 4]))):
        monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / str(number)))
        with Device(), on(engine):
            model = lrcore.load(str(tiny_llama), device=NAME)
            calibration = lrcore.calibrate(model, recipe)
            factors = lrcore.factorize(model, calibration, "svd_llm")
            probes = measure_divergences(model, factors, calibration.tokens[:4, :16], lambda *_: 0)
            losses = lrcore.evaluate(model, recipe.data, samples=9, seq_len=16).window_nll
        results.append((losses, probes))
        assert {*engine.sent} == {*range(engine.count)}
    assert results[0][0] == results[1][0]
    assert results[0][1][0] == results[1][1][0]
    for slot, points in results[0][1][1].items():
        others = results[1][1][1][slot]
        assert [p.rank for p in points] == [p.rank for p in others]
        assert [p.increase for p in points] == pytest.approx([p.increase for p in others], rel=1e-5)
