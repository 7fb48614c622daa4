"""JSON output of the commands that measure, and the page of `compare`."""

import json
import re
from html import unescape

import pytest

import lrcore
from lrcore.cli import main


@pytest.fixture(scope="module")
def folders(tiny_llama, story_file, tmp_path_factory):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4
    )
    made = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    return str(tiny_llama), str(lrcore.save(made, tmp_path_factory.mktemp("made") / "small"))


def run_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_supports_protocols(capsys, folders, story_file):
    result = run_json(
        capsys,
        "evaluate",
        folders[1],
        "--data",
        story_file,
        "--protocol",
        "strided",
        "--seq-len",
        20,
        "--stride",
        5,
        "--samples",
        3,
    )
    assert result["protocol"]["name"] == "strided"
    assert result["tokens"] == 19 + 5 + 5
    assert main(["evaluate", folders[0], "--protocol", "stride"]) == 2
    assert "Did you mean 'strided'" in capsys.readouterr().err


def test_compare_evaluates_models_side_by_side_and_writes_a_page(
    capsys, folders, story_file, tmp_path
):
    page = tmp_path / "report.html"
    settings = ["--data", story_file, "--samples", 2, "--seq-len", 16]
    result = run_json(
        capsys,
        "compare",
        *folders,
        folders[0],
        *settings,
        "--measure-speed",
        "--local",
        "--html",
        page,
        "--prompt",
        "Once <b>upon",
        "--prompt",
        "Tom",
    )
    assert [row["name"] for row in result["models"]] == [*folders, folders[0]]
    dense, small, repeated = result["models"]
    assert (dense["kl"], dense["top1"], repeated["kl"], repeated["top1"]) == (0, 1, 0, 1)
    assert small["kl"] > 0
    comparison = lrcore.compare(*map(lrcore.load, folders), str(story_file), samples=2, seq_len=16)
    assert small["delta_error"] == pytest.approx(comparison.delta_error)
    assert (dense["delta_error"], repeated["delta_error"]) == (None, 0)
    assert small["parameters"] == lrcore.load(folders[1]).size.parameters
    assert small["bytes_on_disk"] > 0
    assert all(row["decode_tokens_per_second"] > 0 for row in result["models"])
    assert {row["parts"] for row in result["details"][0]["contributions"]} == {
        "qk",
        "ov",
        "mlp",
        "qk + ov",
        "qk, ov",
        "all",
    }
    text = page.read_text()
    assert "<h1>Models side by side</h1>" in text
    assert text.count("<svg") == 4
    tables = [section for section in text.split("<h2>") if "<th" in section]
    assert len(tables) == 6  # quality, cost, and losses and errors of two models
    for section in tables:
        columns = re.findall("<th[^>]*>([^<]+)</th>", section)
        assert len(columns) > 2
        assert not any("_" in column or column in ("parts", "predicted") for column in columns)
    cells = {*re.findall("<td>([^<]+)</td>", text)}
    assert not cells & {"qk", "ov", "mlp", "qk, ov", "scores", "residual"}
    assert "fingerprint" in text
    assert "http" not in text.replace("http-equiv", "")
    assert [row["prompt"] for row in result["answers"]] == ["Once <b>upon"] * 3 + ["Tom"] * 3
    assert text.count("<section>") == 6
    assert "Once &lt;b&gt;upon" in text
    plain = unescape(re.sub("</?mark>", "", text))
    assert all(row["answer"] in plain for row in result["answers"])
    assert main(["compare", *folders, *map(str, settings)]) == 0
    assert "top1" in capsys.readouterr().out


def test_compare_needs_two_models(capsys, folders):
    assert main(["compare", folders[0]]) == 2
    assert "two to 6" in capsys.readouterr().err


def test_tasks_and_cost_print_their_measurements(capsys, folders, tmp_path):
    items = tmp_path / "items.jsonl"
    items.write_text('{"question": "Tom went to the", "choices": ["park", "tree"], "label": 0}\n')
    result = run_json(
        capsys, "tasks", folders[1], "--task", items, "--task", "stories", "--items", 1
    )
    assert [row["items"] for row in result["tasks"]] == [1, 1]
    measured = run_json(capsys, "cost", folders[1], "--context", 20, "--dense", folders[0])
    assert measured["parameters"] == lrcore.load(folders[1]).size.parameters
    assert [row["name"] for row in measured["speed"]] == list(folders)
