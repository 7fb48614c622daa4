"""Benchmarks of time and memory, run on tiny models."""

import json

import pytest
import torch

import lrcore
from benchmarks import gpu, growth, random_models, stages, start, throughput, timing
from lrcore.evaluation import cost

SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
}


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr(random_models, "VOCABULARY", 4096)
    sizes = {"SAMPLES": 2, "LENGTH": 32, "TEXTS": 20, "NEW": 2, "ROUNDS": 1}
    for name, value in sizes.items():
        monkeypatch.setattr(gpu, name, value)
        monkeypatch.setattr(throughput, name, value)
    monkeypatch.setattr(gpu, "BATCHES", (1,))
    monkeypatch.setattr(gpu, "PROMPTS", (8,))
    monkeypatch.setattr(
        lrcore, "list_methods", lambda: [{"name": "a3"}, {"name": "clover"}]
    )  # clover cannot remove the ratio


def test_a_device_is_measured_once(monkeypatch, tmp_path) -> None:
    rows = gpu.measure(tmp_path, SHAPE, torch.device("cpu"))
    assert list(rows) == ["dense", "a3", "clover"]
    assert set(rows["a3"]["seconds"]) == set(gpu.STAGES)
    assert rows["a3"]["rates"]["1 8"]["decode"] > 0
    monkeypatch.setattr(gpu, "measure_method", None)
    assert gpu.measure(tmp_path, SHAPE, torch.device("cpu")) == rows
    text = gpu.section("tiny", rows)
    assert f"clover: {rows['clover']['refused']}" in text
    assert text.count("| a3 |") == 2
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_has_no_rate(monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(lrcore, "measure_speed", full)
    assert gpu.rate(lrcore.load("demo-llama"), 256, 128) == gpu.Rate()
    assert gpu.speeds({"prefill": None, "decode": None}) == "–"


def test_gpu_is_skipped_with_a_message_without_a_cuda_device(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.gpu([])
    assert capsys.readouterr().err == "gpu is skipped: torch finds no CUDA device.\n"


def test_timing_waits_for_the_gpu(monkeypatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("waited"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(len(calls)))
    assert timing.timed(lambda: calls.append("run") or "value") == ("value", 2.0)
    assert calls == ["run", "waited"]


def test_stages_are_compared_with_the_forward_passes(monkeypatch) -> None:
    monkeypatch.setattr(stages, "MODEL", "demo-llama")
    monkeypatch.setattr(stages, "SAMPLES", 2)
    monkeypatch.setattr(stages, "LENGTH", 32)
    monkeypatch.setattr(stages, "GOALS", {"svd": 4})
    written: dict[str, str] = {}
    monkeypatch.setattr(stages, "write_section", written.__setitem__)
    stages.stages([])
    rows = [line.split(" | ")[0] for line in written["stages"].splitlines() if line[0:2] == "| "]
    assert rows == [
        "| stage",
        "| calibrate",
        "| analyze",
        "| factorize svd",
        "| compress svd",
        "| a3, from `compress` to the saved checkpoint",
    ]


def test_speed_is_compared_with_the_flops(monkeypatch, tmp_path) -> None:
    name = "tiny"
    monkeypatch.setattr(throughput, "ROOT", tmp_path)
    monkeypatch.setattr(throughput, "PROMPT", 8)
    monkeypatch.setattr(throughput, "MODEL_SHAPES", {name: SHAPE})
    monkeypatch.setattr(throughput, "METHODS", {name: ("svd_llm",)})
    monkeypatch.setattr(throughput, "BATCHES", (1, 2))
    results: dict[str, dict] = {}
    for key, cell in throughput.measure(name, results):
        results[key] = json.loads(json.dumps(vars(cell)))
        assert 1 < cell.flops < 2
    assert len(results) == 4
    assert list(throughput.measure(name, results)) == []
    merged = {"merged_prefill": 1.05, "merged_decode": 1.0}
    results["tiny svd_llm 0.2 1"] = {"flops": 1.2, "prefill": 1.15, "decode": 1.1, **merged}
    results["tiny svd_llm 0.2 2"] = {"flops": 1.2, "prefill": 1.1, "decode": 0.9, **merged}
    results["tiny svd_llm 0.4 1"] = results["tiny svd_llm 0.2 1"]
    results["tiny svd_llm 0.4 2"] = results["tiny svd_llm 0.2 1"]
    text = throughput.section(name, results)
    words = " ".join(text.split())
    assert (
        "of the FLOPs ratio in 3 of 4 cells; slower than dense in prefill or decoding: 1;" in words
    )
    assert "(`merge_factors`): 0." in words
    assert "| svd_llm | 20% | 2 | 0.83 | 1.10 | 0.92 | 0.90 | 1.05 | 1.00 |" in text


def test_growth_is_a_fitted_exponent(monkeypatch) -> None:
    assert growth.exponent((1, 2, 4), [3.0, 24.0, 192.0]) == pytest.approx(3)
    monkeypatch.setattr(growth, "METHODS", ("a3",))
    monkeypatch.setattr(growth, "LENGTH", 32)
    monkeypatch.setattr(growth, "TEXTS", 20)
    monkeypatch.setattr(growth, "HEAD", 16)
    runs = [growth.measure(layers=1, width=32, tokens=tokens) for tokens in (32, 64)]
    assert list(runs[0]) == ["calibrate", "factorize a3", "compress a3"]
    text = growth.section("tokens", (32, 64), runs)
    assert text.startswith("| seconds by tokens | 32 | 64 | exponent |")


def test_memory_below_the_resolution_of_the_system_has_no_exponent() -> None:
    costs = [growth.Cost(1.0, -8192), growth.Cost(2.0, 3_000_000)]
    assert growth.row("a3", (1, 2), costs) == ["a3", "1.00", "2.00", "1.0", "–", "–"]


def test_speed_counts_the_tokens_of_all_sequences(monkeypatch) -> None:
    calls = []

    def a_second_each(model: lrcore.LoadedModel, prompt: torch.Tensor, new: int):
        calls.append((tuple(prompt.shape), new))
        return 1.0, 1.0

    monkeypatch.setattr(cost, "_time", a_second_each)
    model = lrcore.load("demo-llama")
    (speed,) = lrcore.measure_speed([model], prompt=8, new=2, rounds=1, batch=4)
    assert (speed.prefill, speed.decode) == (32, 8)
    assert set(calls) == {((4, 8), 2)}
    with pytest.raises(lrcore.InputError, match="batch"):
        lrcore.measure_speed([model], batch=0)


def test_commands_are_timed_to_their_first_line(monkeypatch) -> None:
    written = {}
    monkeypatch.setattr(start, "ROUNDS", 1)
    monkeypatch.setattr(start, "COMMANDS", {"--help": 1e9, "evaluate /nonexistent": 0.0})
    monkeypatch.setattr(start, "ON_TERMINAL", {"--help": 1e9})
    monkeypatch.setattr(start, "write_section", lambda name, text: written.update({name: text}))
    start.start([])
    piped, missed, terminal = written["start"].splitlines()[-3:]
    assert piped.startswith("| `--help` | ")
    assert piped.endswith(" |  |")
    assert missed.endswith("| missed |")
    assert terminal.startswith("| `--help`, on a terminal | ")
