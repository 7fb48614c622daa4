"""The contract of the command line: commands, JSON on stdout, progress on stderr, exit codes."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest

import lrcore
from lrcore.cli import main
from lrcore.cli.console import ProgressLine, print_json, print_table
from lrcore.cli.reports import fit_line
from lrcore.recipes.history import StandardFit
from lrcore.system.errors import Cancelled

COMMANDS = (
    "methods",
    "calibrate",
    "spectra",
    "allocate",
    "compress",
    "evaluate",
    "heal",
    "generate",
    "quantize",
    "prune-layers",
    "prune-experts",
    "slice",
    "share",
    "sparsify",
    "export",
)


@pytest.fixture
def calibration(story_file):
    return ["--data", str(story_file), "--samples", "4", "--seq-len", "32", "--seed", "1"]


def run_json(capsys, *arguments):
    """Run a command with --json, check exit code 0, and return the printed object."""
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_text_field_is_part_of_the_name_of_the_data(capsys, tiny_llama, tmp_path):
    file = tmp_path / "rows.jsonl"
    texts = [f"One day {number} girls saw a cat in the park." for number in range(40)]
    rows = [{"content": text, "title": "x"} for text in texts] + [{"content": None, "title": "y"}]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    windows = ["--samples", "2", "--seq-len", "16"]
    named = ["--data", file, "--text-field", "content", *windows]
    joined = ["--data", f"{file}#content", *windows]
    for command in ("calibrate", "evaluate"):
        result, expected = (run_json(capsys, command, tiny_llama, *n) for n in (named, joined))
        assert result["protocol"] == expected["protocol"]
        assert result["protocol"]["skipped_rows"] == 1
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model: {tiny_llama}\ndata: {file}\n")
    flags = ["--recipe", recipe, "--text-field", "content", *windows]
    assert run_json(capsys, "calibrate", tiny_llama, *flags)["key"]
    assert main(["evaluate", str(tiny_llama), "--text-field", "content"]) != 0
    assert "'stories' has no fields" in capsys.readouterr().err


def test_methods_lists_methods_and_policies(capsys):
    result = run_json(capsys, "methods")
    assert {"svd", "svd_llm", "a3", "modegpt"} <= {row["name"] for row in result["methods"]}
    assert all(
        {"name", "paper", "components", "supports", "notes"} <= row.keys()
        for row in result["methods"]
    )
    assert {"uniform", "softmax", "waterfill"} <= {row["name"] for row in result["policies"]}
    assert main(["methods"]) == 0
    assert "modegpt" in capsys.readouterr().out


def test_a_standard_fit_is_printed_in_one_line():
    ranks = {(layer, name): 8 * len(name) for layer in range(3) for name in ("qk", "ov", "mlp")}
    fit = StandardFit(False, ("qk below full rank",), ranks)
    line = "no: qk below full rank"
    assert fit_line(fit).startswith(line)
    assert fit_line(fit).endswith(": qk 16, ov 16, mlp 24")
    assert fit_line(replace(fit, ranks=None)) == line
    assert fit_line(StandardFit(True)) == "yes"


def test_compress_prints_a_short_summary_without_none(capsys, tiny_llama, calibration, tmp_path):
    assert main(["compress", str(tiny_llama), *calibration, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 12
    assert not any("None" in line for line in lines)
    small = lrcore.load(str(tmp_path / "out"))
    assert any(f"{small.account.model.parameters:,}" in line for line in lines)
    assert str(tmp_path / "out") in lines[6]


def test_tables_shorten_paths_to_distinct_names(capsys):
    rows = [{"model": name, "tokens": 8} for name in ("/a/b/c/small", "/a/b/d/small", "demo-llama")]
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["c/small", "d/small", "demo-llama"]
    print_table([{"model": "/a/b/small"}, {"model": "/a/other"}, {"model": "a text / of words"}])
    assert capsys.readouterr().out.splitlines()[1:] == ["small", "other", "a text / of words"]


def test_tables_align_numbers_and_leave_none_out(capsys):
    print_table([{"model": "dense", "error": None}, {"model": "small", "error": 0.125}])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["error", "–", "0.125"]
    assert len({len(line) for line in lines}) == 1


def test_an_unchanged_export_prints_only_figures(capsys, tiny_llama, tmp_path):
    assert main(["export", str(tiny_llama), str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line.split()) == 2 and line.split()[1] != "0" for line in lines), lines


def test_a_sweep_prints_what_differs_between_its_rows(capsys, tiny_llama, story_file, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"model: {tiny_llama}\nmethods: [svd]\nratios: [0.2, 0.4]\nsamples: 2\nseq_len: 16\n"
        f"calibration_sets: [{story_file}]\n"
        f"evaluation: {{data: {story_file}, samples: 2, seq_len: 16}}\n"
    )
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 0
    header = capsys.readouterr().out.splitlines()[0].split()
    assert {"method", "ratio", "parameters", "perplexity"} <= {*header}
    assert not {"nonfinite", "measured_on", "nll"} & {*header}
    assert "nll" in (tmp_path / "out" / "table.csv").read_text().splitlines()[0]


def test_commands_from_calibrate_to_generate_agree_with_each_other(
    capsys, tiny_llama, calibration, story_file, tmp_path
):
    collected = run_json(capsys, "calibrate", tiny_llama, "--sampling", "random", *calibration)
    assert (collected["layers"], len(collected["block_influence"])) == (3, 3)
    assert collected["protocol"]["seq_len"] == 32

    spectra = run_json(capsys, "spectra", tiny_llama, "--threshold", "0.8", *calibration)
    assert {row["name"] for row in spectra["table"]} >= {"qk", "ov", "mlp", "q", "down"}
    assert spectra["protocol"] == collected["protocol"]

    flags = "--method modegpt --policy softmax --temperature 0.5 --ratio 0.3 --budget all_params"
    requested = [*flags.split(), *calibration]
    plan = run_json(capsys, "allocate", tiny_llama, *requested)
    made = run_json(capsys, "compress", tiny_llama, *requested, "--out", tmp_path / "small")
    assert plan["recipe"] == made["recipe"]
    assert plan["ranks"] == made["ranks"]
    assert plan["summary"] == made["summary"]
    assert made["out"] == str(tmp_path / "small")
    assert made["seconds"]

    windows = ["--samples", "3", "--seq-len", "16", "--sampling", "first"]
    scored = run_json(capsys, "evaluate", made["out"], "--data", story_file, *windows)
    assert scored.keys() >= {"perplexity", "nll", "tokens", "windows", "nonfinite", "protocol"}
    evaluated = lrcore.evaluate(lrcore.load(made["out"]), str(story_file), samples=3, seq_len=16)
    assert scored["perplexity"] == evaluated.perplexity

    once = ["--prompt", "Once", "--max-new-tokens", "8", "--seed", "3", "--temperature", "1"]
    output = run_json(capsys, "generate", made["out"], *once)
    assert output["text"] == lrcore.generate(
        lrcore.load(made["out"]), "Once", 8, temperature=1.0, seed=3
    )
    assert main(["generate", made["out"], *once]) == 0
    assert capsys.readouterr().out == f"Once{output['text']}\n"


def test_flags_override_the_fields_of_a_recipe_file(capsys, tiny_llama, story_file, tmp_path):
    file = tmp_path / "recipe.json"
    by_hand = {"0.mlp": 20}
    recipe = lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="a3",
        ratio=0.4,
        rank_overrides=by_hand,
    )
    file.write_text(recipe.to_json())
    result = run_json(capsys, "allocate", "--recipe", file)
    assert lrcore.Recipe.from_dict(result["recipe"]) == recipe
    changed = run_json(
        capsys,
        "allocate",
        "--recipe",
        file,
        "--ratio",
        0.2,
        "--rank-override",
        "1.mlp=30",
        "--rounding",
        "nearest",
    )
    assert lrcore.Recipe.from_dict(changed["recipe"]) == recipe.with_(
        ratio=0.2, rounding="nearest", rank_overrides={"0.mlp": 20, "1.mlp": 30}
    )
    ranks = {(row["layer"], row["component"]): row["rank"] for row in changed["ranks"]}
    assert (ranks[0, "mlp"], ranks[1, "mlp"]) == (20, 30)


def test_the_command_of_a_recipe_reproduces_the_recipe(tiny_llama, story_file, tmp_path):
    import shlex

    recipe = lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="a3",
        budget="kv",
        calibration_mode="sequential",
        rank_overrides={"0.qk": 4},
        sampling="first",
        rounding="nearest",
    )
    words = shlex.split(recipe.command(str(tmp_path / "out")))
    assert words[:3] == ["python", "-m", "lrcore"]
    assert main(words[3:]) == 0
    assert lrcore.Recipe.read(tmp_path / "out" / "recipe.json") == recipe


def test_tables_are_printed_without_json(capsys, tiny_llama, calibration):
    assert main(["allocate", str(tiny_llama), "--method", "a3", *calibration]) == 0
    message = capsys.readouterr()
    head, *rows = message.out.splitlines()
    assert head.split()[:3] == ["layer", "component", "rank"]
    assert len([row for row in rows if " mlp " in row]) == 3
    assert "summary.achieved" in message.out
    assert [line.split()[0] for line in message.err.splitlines()] == ["calibrate", "factorize"]


def test_help_lists_all_commands(capsys):
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        output = capsys.readouterr().out
        assert all(f"\n  {word} " in output for word in COMMANDS)
    assert main(["compress", "--help"]) == 0
    assert "--seq-len" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["compres"],
        ["evaluate"],
        ["allocate", "x", "--ratio", "much"],
        ["compress", "x", "--no-such"],
        ["compress", "x"],
        ["allocate"],
        ["allocate", "x", "--rank-override", "3.mlp"],
        ["allocate", "--recipe", "/none.json"],
        ["spectra", "x", "--threshold", "2"],
    ],
)
def test_wrong_usage_is_reported_in_one_line_with_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    message = capsys.readouterr()
    assert message.out == ""
    assert message.err.startswith("error: ")
    assert message.err.count("\n") == 1


@pytest.mark.parametrize("stop", [Cancelled, KeyboardInterrupt])
def test_a_canceled_command_exits_with_130(stop, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise stop

    monkeypatch.setattr(lrcore, "load", interrupted)
    assert main(["evaluate", "demo-llama"]) == 130
    assert capsys.readouterr().err == "canceled\n"


def test_an_internal_error_is_reported_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))  # a folder without a cached list of methods
    monkeypatch.setattr(lrcore, "list_methods", lambda: 1 / 0)
    monkeypatch.delenv("LRCORE_DEBUG", raising=False)
    assert main(["methods"]) == 1
    assert (
        capsys.readouterr().err
        == "error: ZeroDivisionError: division by zero (LRCORE_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("LRCORE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["methods"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_that_a_model_is_loading(monkeypatch, tiny_opt):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["generate", str(tiny_opt), "--prompt", "a", "--max-new-tokens", "2"]) == 0
    assert sys.stderr.getvalue() == "\r\x1b[Kload 0/1\r\x1b[K"


def test_progress_updates_one_line_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    line = ProgressLine()
    for step in range(3):
        line("calibrate", step, 2)
    line.clear()
    output = sys.stderr.getvalue()
    assert "\n" not in output
    assert output.endswith("calibrate 2/2\r\x1b[K")


def test_json_output_contains_no_nan(capsys):
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (1, None, "x")}})
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": [None, 1.5],
        "c": {"d": [1, None, "x"]},
    }


def test_a_subprocess_prints_only_json_to_stdout(tiny_opt, story_file):
    requested = [
        "evaluate",
        str(tiny_opt),
        "--data",
        str(story_file),
        "--samples",
        "2",
        "--seq-len",
        "16",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "lrcore", *requested], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["windows"] == 2
    assert done.stderr == "evaluate (2)\n"


def test_component_ratios_and_options_are_used(tiny_opt, calibration, capsys) -> None:
    requested = [
        "--method",
        "a3",
        "--option",
        "qk=q_only",
        "--policy",
        "softmax",
        "--policy-option",
        "cap=0.8",
        "--component-ratio",
        "mlp=0.5",
    ]
    got = run_json(capsys, "allocate", tiny_opt, *requested, "--ratio", "0.4", *calibration)
    assert got["recipe"]["component_ratios"] == {"mlp": 0.5}
    assert got["recipe"]["options"] == {"qk": "q_only"}
    mlp_rows = [row for row in got["ranks"] if row["component"] == "mlp"]
    assert sum(row["parameters"] for row in mlp_rows) <= 0.5 * sum(
        row["dense_parameters"] for row in mlp_rows
    )
    assert got["summary"]["achieved"] >= 0.4
    for words, expected in (
        (["--component-ratio", "mlp"], "COMPONENT=RATIO"),
        (["--policy-option", "cap=2"], "at most 1"),
    ):
        assert main(["allocate", str(tiny_opt), "--policy", "softmax", *words]) == 2
        assert expected in capsys.readouterr().err


def test_error_bounds_are_printed_and_saved_in_the_report(tiny_opt, calibration, capsys, tmp_path):
    requested = ["--method", "modegpt", "--ratio", "0.4", "--bounds", *calibration]
    got = run_json(capsys, "compress", tiny_opt, "--out", tmp_path / "small", *requested)
    assert all(
        row["bound"] is None or row["error"] <= row["bound"] * (1 + 1e-9) for row in got["bounds"]
    )
    assert len(got["bounds"]) == len(got["ranks"])
    (step,) = json.loads((tmp_path / "small" / "report.json").read_text())["history"]
    assert step["bounds"] == got["bounds"]
    assert run_json(capsys, "allocate", tiny_opt, *requested)["bounds"] == got["bounds"]
    assert main(["allocate", str(tiny_opt), "--method", "a3", "--bounds", *calibration]) == 2


def test_nested_checkpoint_is_cut_when_it_is_loaded(tiny_llama, calibration, capsys, tmp_path):
    requested = ["--method", "svd", "--ratio", "0.2", "--nested", "0.3,0.5", *calibration]
    folder = tmp_path / "nested"
    got = run_json(capsys, "compress", tiny_llama, "--out", folder, *requested)
    parameters = {row["ratio"]: row["parameters"] for row in got["cuts"]}
    assert list(parameters) == [0.2, 0.3, 0.5]
    for ratio, count in parameters.items():
        cost = run_json(capsys, "cost", folder, "--ratio", str(ratio), "--context", "16")
        assert cost["parameters"] == count
    exported = run_json(capsys, "export", folder, tmp_path / "out", "--ratio", "0.5")
    assert exported["parameters"] == parameters[0.5]
    assert main(["evaluate", str(folder), "--ratio", "0.6"]) == 2
    assert "from 0.2 to 0.5" in capsys.readouterr().err


def test_a_second_command_in_a_process_prints_its_stages(tiny_llama, story_file, capsys):
    words = ["evaluate", str(tiny_llama), "--data", str(story_file), "--samples", "1"]
    for _ in range(2):
        assert main([*words, "--seq-len", "16", "--json"]) == 0
        assert capsys.readouterr().err == "evaluate (1)\n"


def test_a_cell_with_line_breaks_stays_in_its_row(capsys):
    print_table([{"answer": "One.\n\nTwo.", "tokens": 5}])
    assert len(capsys.readouterr().out.splitlines()) == 2
