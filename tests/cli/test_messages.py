"""Messages of the command line other than tables: options, ratios, versions, protocols."""

import sys
from pathlib import Path

import pytest

import lrcore
from lrcore.cli import main
from lrcore.cli.console import print_table, print_values
from lrcore.cli.runs import protocol

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [[], ["compress"], ["runs"], ["runs", "show"]])
def test_h_is_an_abbreviation_of_help(command, capsys):
    outputs = []
    for flag in ("-h", "--help"):
        assert main([*command, flag]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lrcore {lrcore.__version__}\n"


def test_methods_lists_all_options_with_their_defaults(capsys):
    assert main(["methods"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in [*lrcore.list_methods(), *lrcore.list_policies()]:
        for option in row["options"]:
            start = [row["name"], option["name"], str(option["default"]).lower()]
            assert start in [line[:3] for line in lines]
    assert main(["compress", "--help"]) == 0
    assert "`methods` lists all options with their defaults" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_cache_ratio_is_named_and_a_model_that_grows_is_reported(capsys, story_file):
    command = ["allocate", "demo-llama", "--method", "care", "--ratio", "0.2"]
    command += ["--data", str(story_file), "--samples", "2", "--seq-len", "32"]
    assert main(command) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("The ratio 0.2 is the share of the KV cache bytes removed; 0.2")
    assert "more parameters than the dense model: 5,218,048 instead of 5,139,712 (+1.5%)" in last
    assert main([*command, "--json"]) == 0
    assert "warning: The model has more parameters" in capsys.readouterr().err


def test_whitespace_values_are_printed_visibly(capsys):
    print_values({"protocol": {"join": "\n\n", "part": ""}})
    print_table([{"join": " "}])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["protocol.join", r"'\n\n'"], ["protocol.part"], ["join"], ["'", "'"]]


def test_the_list_of_runs_shows_the_protocol_of_a_perplexity():
    windows = {"source": "stories/test", "name": "windows", "windows": 8, "seq_len": 256}
    first = protocol(windows | {"sampling": "first", "seed": None})
    assert first == "stories/test windows first 8 x 256"
    assert protocol(windows | {"sampling": "random", "seed": 3}) != first
    assert protocol({}) == ""


@pytest.mark.parametrize(
    ("model", "expected"), [("stories260K", "LRCORE_REFERENCE"), ("demo-lama", "demo-llama")]
)
def test_a_benchmark_without_its_data_exits_with_a_message(model, expected, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.delenv("LRCORE_REFERENCE", raising=False)
    from benchmarks.__main__ import main

    monkeypatch.setattr(sys, "argv", ["benchmarks.py", "quality", model])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
