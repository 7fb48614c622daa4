"""Memory estimates of calibration and factorization compared with measurements, and refusals."""

from functools import partial

import pytest
import torch
from tiny_models import copy_tokenizer
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import lrcore
from lrcore.compression.calibration import working_memory
from lrcore.compression.calibration.calibrate import all_needs
from lrcore.compression.calibration.working_memory import calibration_memory
from lrcore.compression.solve.factor_memory import factor_memory
from lrcore.compression.solve.tokens_needed import tokens_needed
from lrcore.methods import METHODS
from lrcore.system import memory
from lrcore.system.errors import ResourceError
from lrcore.system.hardware import Hardware
from lrcore.system.tensor_files import memory_of

WINDOWS, LENGTH = 8, 32
MAX_RATIO, MIN_RATIO = 1.5, 0.6  # bounds of estimated / measured bytes
# Methods with estimates that are only lower bounds: they decompose attention heads or parts of
# moments, or need less than the mapped files of the moments, which the profiler counts.
LOWER_BOUNDS_ONLY = ("a3", "clover", "care", "flap", "mha2mla", "transmla")
_NARROW = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2}
BY_STRUCTURE = {  # families without a row; the input of a matrix is 512 wide
    "diffllama": _NARROW | {"intermediate_size": 512, "num_attention_heads": 4},
    "mamba2": _NARROW
    | {"num_heads": 32, "head_dim": 16, "expand": 8, "state_size": 8}
    | {"n_groups": 1, "chunk_size": 16},
}


@pytest.fixture(scope="module")
def wide(tiny_llama, story_file, tmp_path_factory):
    """Return a model with an MLP eight times as wide as the stream, its recipe and calibration."""
    config = LlamaConfig.from_pretrained(tiny_llama)
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 512, 16
    config.num_hidden_layers = 2
    folder = tmp_path_factory.mktemp("wide")
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in tiny_llama.glob("token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    model = lrcore.load(str(folder))
    recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=WINDOWS, seq_len=LENGTH)
    return model, recipe, lrcore.calibrate(model, recipe)


@pytest.fixture(autouse=True)
def _single_thread():
    """Use one thread, because the profiler records only one."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def peak(work) -> tuple:
    """Return the result of a function and the peak bytes of tensors."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        out = work()
    events = [
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    held = peak_bytes = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak_bytes = max(peak_bytes, held)
    return out, peak_bytes


def test_peak_memory_of_calibration_matches_the_estimate(wide, tmp_path, monkeypatch):
    model, recipe, _ = wide
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    _, peak_bytes = peak(lambda: lrcore.calibrate(model, recipe))
    need = calibration_memory(model.network, WINDOWS, LENGTH, all_needs())
    assert need.states == WINDOWS * LENGTH * 64 * 4
    assert 0.75 * peak_bytes < need.total < 1.25 * peak_bytes


@pytest.mark.parametrize("name", METHODS)
def test_peak_memory_of_factorization_matches_the_estimate(wide, name):
    model, _, calibration = wide
    row = METHODS[name]
    lrcore.factorize(model, calibration, name)  # cache all other measurements first
    made, peak_bytes = peak(lambda: lrcore.factorize(model, calibration, name))
    factor_bytes = sum(sum(memory_of(factors).values()) for factors in made.layers)
    need = factor_memory(model.network, row, row.choose({})).total
    assert need < MAX_RATIO * (peak_bytes - factor_bytes)
    if name not in LOWER_BOUNDS_ONLY:
        assert need > MIN_RATIO * (peak_bytes - factor_bytes)


@pytest.mark.parametrize("name", ["svd", "svd_llm", "kfac_svd", "fused"])
@pytest.mark.parametrize("family", ["diffllama", "mamba2"])
def test_peak_memory_of_matrices_found_by_structure_matches_the_estimate(
    family, name, tiny_llama, story_file, tmp_path
):
    config = AutoConfig.for_model(family, **BY_STRUCTURE[family])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    copy_tokenizer(tiny_llama, tmp_path)
    model, row = lrcore.load(str(tmp_path)), METHODS[name]
    recipe = lrcore.Recipe(data=str(story_file), samples=WINDOWS, seq_len=LENGTH, method=name)
    calibration = lrcore.calibrate(model, recipe)
    lrcore.factorize(model, calibration, name)
    made, peak_bytes = peak(lambda: lrcore.factorize(model, calibration, name))
    peak_bytes -= sum(sum(memory_of(factors).values()) for factors in made.layers)
    need = factor_memory(model.network, row, row.choose({})).total
    assert MIN_RATIO * peak_bytes < need < MAX_RATIO * peak_bytes
    assert tokens_needed(model.network, recipe) == (0 if name == "svd" else 512)


def test_methods_that_read_wider_moments_have_larger_estimates(wide):
    model, *_ = wide

    def moments(name: str) -> int:
        row = METHODS[name]
        return factor_memory(model.network, row, row.choose({})).moments

    assert moments("svd") == 0
    assert moments("care") == 64**2 * 8
    assert moments("svd_llm") == 512**2 * 8


@pytest.mark.parametrize("version", ["own limit", "group of version 2"])
def test_calibration_larger_than_free_memory_raises_before_the_first_layer(
    wide, tmp_path, monkeypatch, version
):
    model, recipe, _ = wide
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    need = calibration_memory(model.network, WINDOWS, LENGTH, all_needs())
    with monkeypatch.context() as patch:
        limit_free_bytes(patch, tmp_path, version, need.total - 1)
        with pytest.raises(ResourceError, match=r"^Hidden states of 8 windows .* second moments"):
            lrcore.calibrate(model, recipe)
    assert not [*(tmp_path / "cache").rglob("*.safetensors")]
    limit_free_bytes(monkeypatch, tmp_path, version, need.total)
    assert lrcore.calibrate(model, recipe).layers == 2


def test_cached_calibration_is_returned_even_without_free_memory(wide, tmp_path, monkeypatch):
    model, recipe, limits = wide
    monkeypatch.setattr(working_memory, "hardware", lambda device: Hardware("CPU", "", 1, 1))
    assert lrcore.calibrate(model, recipe).key == limits.key


@pytest.mark.parametrize("version", ["own limit", "group of version 2"])
def test_factorization_larger_than_free_memory_raises_before_the_first_layer(
    wide, tmp_path, monkeypatch, version
):
    model, _, calibration = wide
    row = METHODS["svd_llm"]
    need = factor_memory(model.network, row, row.choose({}))
    limit_free_bytes(monkeypatch, tmp_path, version, need.total - 1)
    done = []
    with pytest.raises(ResourceError, match=r"^The decompositions of a layer by svd_llm, .* free"):
        lrcore.factorize(model, calibration, "svd_llm", lambda *at: done.append(at))
    assert done == []
    assert lrcore.factorize(model, calibration, "svd").layers


def limit_free_bytes(patch, folder, version: str, free: int) -> None:
    """Set the free bytes by a limit of the process or by the files of a control group."""
    if version == "own limit":
        patch.setattr(memory, "_limits", lambda: iter([(free, 10 * free)]))
        return
    group, own_folder = folder / "mount" / "job.scope", folder / "own"
    group.mkdir(parents=True, exist_ok=True)
    own_folder.write_text("0::/job.scope\n")
    for name, content in (("max", free + 5000), ("current", 7000), ("stat", "inactive_file 2000")):
        (group / f"memory.{name}").write_text(f"{content}\n")
    limits = partial(memory.group_limits, own_folder, folder / "mount")
    patch.setattr(memory, "group_limits", limits)
