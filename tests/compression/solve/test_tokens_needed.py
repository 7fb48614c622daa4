"""Calibration tokens that a recipe needs, and messages if there are fewer."""

import pytest

import lrcore
from lrcore.cli import main
from lrcore.compression.solve.tokens_needed import tokens_needed
from lrcore.methods import METHODS

WIDTHS = {"attn_in": 256, "mlp_hidden": 688}  # of demo-llama


@pytest.fixture(scope="module")
def dense():
    return lrcore.load("demo-llama")


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"method": "svd"}, 0),
        ({"method": "svd", "refit": "on"}, WIDTHS["mlp_hidden"]),
        ({"method": "svd_llm"}, WIDTHS["mlp_hidden"]),
        ({"method": "modegpt"}, WIDTHS["mlp_hidden"]),
        ({"method": "fused"}, WIDTHS["mlp_hidden"]),
        ({"method": "a3"}, WIDTHS["attn_in"]),  # its neurons are selected, not solved
        ({"method": "care"}, WIDTHS["attn_in"]),
        ({"method": "care", "refit": "on"}, WIDTHS["attn_in"]),
        ({"method": "flap"}, 0),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else None,
)
def test_tokens_needed_equal_the_widest_solved_input(settings, needed, dense):
    assert tokens_needed(dense.network, lrcore.Recipe(**settings)) == needed


def test_tokens_needed_do_not_read_offloaded_layers(dense):
    offloaded = lrcore.load("demo-llama", offload=True)
    for method in METHODS:
        recipe = lrcore.Recipe(method=method)
        assert tokens_needed(offloaded.network, recipe) == tokens_needed(dense.network, recipe)


@pytest.mark.parametrize(
    ("method", "samples", "needed"), [("svd_llm", 2, 48), ("svd_llm", 3, 0), ("svd", 1, 0)]
)
def test_history_reports_missing_calibration_tokens(method, samples, needed, tiny_llama):
    dense = lrcore.load(str(tiny_llama))
    assert dense.network.config.intermediate_size == 48
    recipe = lrcore.Recipe(str(tiny_llama), method=method, samples=samples, seq_len=16, refit="off")
    step = lrcore.compress(dense, recipe).history[-1]
    assert step.calibration.get("tokens_needed", 0) == needed
    sentence = step.about_calibration
    if needed:
        assert "32 tokens" in sentence
        assert "at least 48 tokens" in sentence
    else:
        assert not sentence


def test_commands_report_missing_calibration_tokens(tiny_llama, tmp_path, capsys):
    command = ["compress", str(tiny_llama), "--method", "svd_llm", "--samples", "1"]
    assert main([*command, "--seq-len", "16", "--out", str(tmp_path / "small")]) == 0
    assert "The calibration has 16 tokens" in capsys.readouterr().out
    assert "16 tokens" in lrcore.load(str(tmp_path / "small")).history[-1].about_calibration
    command[0] = "allocate"
    assert main([*command, "--seq-len", "16", "--json"]) == 0
    assert "warning: The calibration has 16 tokens" in capsys.readouterr().err
