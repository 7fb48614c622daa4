"""Damaged moment files: wrong shapes are found at the start, wrong numbers on reading."""

import gc

import pytest
import torch
from safetensors.torch import load_file, save_file

import lrcore
from lrcore.compression.calibration.calibrate import add_statistics
from lrcore.compression.calibration.gradients import with_gradients
from lrcore.compression.calibration.moment_files import layer_file
from lrcore.compression.evidence.calibration_evidence import ANGLE_NEEDS
from lrcore.layers.statistics import BLOCK_ANGLE
from lrcore.runs.cluster.pickling import pack, unpack
from lrcore.system.errors import InputError
from lrcore.system.progress import silent

NOT_FINITE = {
    "NaN in a second moment": (
        "attn_in.second",
        lambda x: x.index_fill_(0, torch.tensor(7), torch.nan),
    ),
    "infinity in a second moment": ("mlp_hidden.second", lambda x: x.fill_(torch.inf)),
    "NaN in a mean": ("attn_in.mean", lambda x: x.index_fill_(0, torch.tensor(3), torch.nan)),
    "NaN in a sample": ("mlp_in.sample", lambda x: x.fill_(torch.nan)),
    "NaN in an influence": ("block.influence", lambda x: x.fill_(torch.nan)),
}
WRONG_SHAPES = {
    "a second moment of another size": ("attn_in.second", lambda x: x[:-1].clone()),
    "a second moment of two dimensions": ("attn_in.second", lambda x: x[None]),
    "squares of another width": ("attn_in.square", lambda x: x[:-1].clone()),
    "a mean of a mean": ("mlp_in.mean", lambda x: x.mean()),
    "samples of another width": ("mlp_in.sample", lambda x: x[:, :-1].clone()),
    "a mean in float32": ("attn_in.mean", lambda x: x.float()),
    "a second moment of integers": ("attn_in.second", lambda x: x.long()),
    "no mean": ("attn_in.mean", lambda x: None),
}
LAYER = 1


@pytest.fixture
def recipe(tiny_llama, story_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)


@pytest.fixture
def model(recipe):
    return lrcore.load(recipe.model)


def damage(file, name, change):
    tensors = load_file(file)
    tensors[name] = change(tensors[name])
    valid_tensors = {name: value for name, value in tensors.items() if value is not None}
    save_file(valid_tensors, file, {"tokens": "32"})


def all_statistics(calibration):
    """Return all statistics of the layer and its influence."""
    values = calibration.moments(LAYER).values
    read = {need: values[need].clone() for need in sorted(values)}
    return read | calibration.influence


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for need, value in actual.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[need])), need


@pytest.mark.parametrize("case", NOT_FINITE | WRONG_SHAPES)
def test_file_damaged_before_a_calibration_is_collected_again(case, recipe, model):
    calibration = lrcore.calibrate(model, recipe)
    right, file = all_statistics(calibration), layer_file(calibration.folder, LAYER)
    content = file.read_bytes()
    damage(file, *(NOT_FINITE | WRONG_SHAPES)[case])
    assert_equal(all_statistics(lrcore.calibrate(model, recipe)), right)
    assert file.read_bytes() == content


@pytest.mark.parametrize("case", [*NOT_FINITE, "cut", "gone", "another file"])
def test_file_damaged_after_a_calibration_is_collected_again(case, recipe, model):
    right = all_statistics(lrcore.calibrate(model, recipe))
    calibration = lrcore.calibrate(model, recipe)
    file = layer_file(calibration.folder, LAYER)
    content = file.read_bytes()
    if case in NOT_FINITE:
        damage(file, *NOT_FINITE[case])
    elif case == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-5] if case == "cut" else b"\xff" * 99)
    assert_equal(all_statistics(calibration), right)
    assert file.read_bytes() == content


def test_damaged_file_without_the_model_raises_and_the_next_run_collects_it(recipe):
    calibration = lrcore.calibrate(lrcore.load(recipe.model), recipe)
    gc.collect()
    file = layer_file(calibration.folder, LAYER)
    content = file.read_bytes()
    damage(file, *NOT_FINITE["NaN in a mean"])
    with pytest.raises(
        InputError, match=r"is damaged or missing\. Run the same command again"
    ) as raised:
        all_statistics(calibration)
    assert "\n" not in str(raised.value)
    lrcore.calibrate(lrcore.load(recipe.model), recipe)
    assert file.read_bytes() == content


def test_calibration_sent_to_another_process_is_collected_again_there(recipe, model):
    calibration = lrcore.calibrate(model, recipe)
    right = all_statistics(calibration)
    sent = unpack(pack((model, lrcore.calibrate(model, recipe))))[1]
    damage(layer_file(calibration.folder, LAYER), *NOT_FINITE["NaN in a mean"])
    assert_equal(all_statistics(sent), right)


def test_damaged_extra_statistics_and_gradients_are_collected_again(recipe, model):
    calibration = add_statistics(model, lrcore.calibrate(model, recipe), ANGLE_NEEDS)
    calibration = with_gradients(model, calibration, ("fisher", "slope"))
    right = all_statistics(calibration)
    folders = (*calibration.extra, *calibration.gradients)
    files = [layer_file(folder, LAYER) for folder in folders]
    content = [file.read_bytes() for file in files]
    changes = (".".join(BLOCK_ANGLE), "q.fisher", "down.slope")
    for file, name in zip(files, changes, strict=True):
        damage(file, name, lambda x: x.fill_(torch.nan))
    assert_equal(all_statistics(calibration), right)
    assert [file.read_bytes() for file in files] == content
    for file, name in zip(files[1:], changes[1:], strict=True):
        damage(file, name, lambda x: x[:-1].clone())
    assert_equal(
        all_statistics(with_gradients(model, calibration, ("fisher", "slope"), silent)), right
    )
    assert [file.read_bytes() for file in files] == content


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.fill_(torch.nan),
        lambda x: x[:, :-1].clone(),
        lambda x: x.float(),
        lambda x: None,
    ],
    ids=["NaN", "another shape", "another dtype", "missing"],
)
def test_damaged_spectra_are_measured_again(change, recipe, model, tmp_path):
    calibration = lrcore.calibrate(model, recipe)
    table = lrcore.analyze(model, calibration).table(0.9)
    (folder,) = (tmp_path / "cache" / "spectra").iterdir()
    file = layer_file(folder, LAYER)
    content = file.read_bytes()
    damage(file, "q.aware", change)
    assert lrcore.analyze(model, calibration).table(0.9).equals(table)
    assert file.read_bytes() == content
