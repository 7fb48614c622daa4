"""Errors on the command line: one line that names the error, exit code 2, nothing on stdout."""

import json
import os
import shutil

import fresh
import pytest
from safetensors.torch import load_file, save_file

from lrcore.cli import main
from lrcore.cli.flags import read_recipe


@pytest.fixture
def message(capsys):
    """Return a function that runs a command, checks that it is refused, and returns the
    error line.
    """

    def run(*arguments):
        assert main([str(argument) for argument in arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("error: ")
        assert output.err.count("\n") == 1, output.err
        return output.err

    return run


@pytest.fixture
def broken(tiny_llama, tmp_path):
    """Return a copy of a model, to be damaged."""
    return shutil.copytree(tiny_llama, tmp_path / "model")


@pytest.fixture
def quick(story_file):
    return ["--data", story_file, "--samples", 2, "--seq-len", 16]


def test_an_unknown_model_is_reported(message, quick):
    assert "Did you mean 'demo-llama'?" in message("calibrate", "demo-lama", *quick)
    assert "'/no/model'" in message("evaluate", "/no/model")
    assert "'nobody/nothing'" in message("generate", "nobody/nothing", "--prompt", "Once")


def test_an_unknown_method_or_policy_is_reported(message, tiny_llama, quick, tmp_path):
    assert "Did you mean 'modegpt'?" in message(
        "allocate", tiny_llama, "--method", "modgpt", *quick
    )
    assert "Did you mean 'softmax'?" in message(
        "compress", tiny_llama, "--policy", "sofmax", "--out", tmp_path / "out", *quick
    )
    assert not (tmp_path / "out").exists()


def test_unknown_data_is_reported(message, tiny_llama):
    assert "Did you mean 'stories'?" in message(
        "evaluate", tiny_llama, "--data", "storys", "--seq-len", 16
    )
    assert "/no/text.txt" in message(
        "spectra", tiny_llama, "--data", "/no/text.txt", "--seq-len", 16
    )


@pytest.mark.parametrize("ratio", ["0", "1", "1.5", "-0.2", "nan"])
def test_a_ratio_outside_its_range_is_reported(message, tiny_llama, quick, ratio):
    assert f"got {float(ratio)!r}" in message("allocate", tiny_llama, "--ratio", ratio, *quick)


def test_a_temperature_without_effect_is_reported(message, tiny_llama, quick):
    refused = message("allocate", tiny_llama, "--policy", "energy", "--temperature", 0.3, *quick)
    assert "Policy energy has no temperature" in refused


def test_the_temperature_in_a_file_is_dropped_if_the_policy_has_none(tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"policy": "energy", "temperature": 0.3}))
    assert read_recipe({}, file).temperature is None


@pytest.mark.parametrize(
    "wrong",
    [
        ("--samples", "0", "samples"),
        ("--seq-len", "1", "seq_len"),
        ("--seed", "-1", "seed"),
        ("--budget", "parms", "'params'"),
        ("--sampling", "frist", "'first'"),
        ("--rounding", "up", "rounding"),
        ("--dtype", "int8", "dtype"),
        ("--device", "gpu", "device"),
        ("--temperature", "0", "temperature"),
        ("--rank-override", "9.mlp=4", "9.mlp"),
        ("--rank-override", "0.mpl=4", "0.mpl"),
        ("--rank-override", "0.mlp=0", "0.mlp"),
        ("--seq-len", "500", "128"),
    ],
)
def test_other_invalid_fields_are_reported(message, tiny_llama, story_file, wrong, capsys):
    flag, value, word = wrong
    flag_values = {"--data": story_file, "--samples": 2, "--seq-len": 16, flag: value}
    if word in (
        "9.mlp",
        "0.mpl",
    ):  # the error is found after factorization, so progress precedes it
        assert (
            main(
                [
                    "allocate",
                    str(tiny_llama),
                    *(str(part) for pair in flag_values.items() for part in pair),
                ]
            )
            == 2
        )
        assert word in capsys.readouterr().err.splitlines()[-1]
        return
    assert word in message(
        "allocate", tiny_llama, *(part for pair in flag_values.items() for part in pair)
    )


def test_a_folder_without_weights_is_reported(message, broken):
    (broken / "model.safetensors").unlink()
    assert str(broken) in message("evaluate", broken)


def test_truncated_weights_are_reported(message, broken):
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert str(file) in message("evaluate", broken)


def test_weights_with_nan_are_reported(message, broken):
    state = load_file(broken / "model.safetensors")
    state["model.norm.weight"][3] = float("nan")
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    assert "'model.norm.weight'" in message("generate", broken, "--prompt", "Once")


def test_empty_and_short_texts_are_reported(message, tiny_llama, tmp_path):
    text = tmp_path / "text.txt"
    for content, word in [
        ("", "text.txt"),
        (" \n", "text.txt"),
        ("Once upon a time", "windows of at most"),
    ]:
        text.write_text(content)
        for command in ("evaluate", "calibrate"):
            assert word in message(command, tiny_llama, "--data", text, "--seq-len", 64)


def test_an_output_folder_with_other_files_is_not_overwritten(message, tiny_llama, quick, tmp_path):
    (tmp_path / "diary.txt").touch()
    assert str(tmp_path) in message("compress", tiny_llama, "--out", tmp_path, *quick)


def test_invalid_recipe_files_are_reported(message, tmp_path):
    (tmp_path / "recipe.yaml").write_text("model: demo-llama\nmethd: a3\n")
    assert "Did you mean 'method'?" in message("allocate", "--recipe", tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text("a: [b\n")
    assert "recipe.yaml" in message("allocate", "--recipe", tmp_path / "recipe.yaml")


def test_an_empty_prompt_is_reported(message, tiny_llama):
    assert "prompt is empty" in message("generate", tiny_llama, "--prompt", "")


def test_an_invalid_config_is_reported_by_a_subprocess(broken):
    (broken / "config.json").write_text("{")
    done = fresh.project().run(["-m", "lrcore", "evaluate", str(broken)], os.environ, fresh.ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")
    assert "config.json" in done.stderr
