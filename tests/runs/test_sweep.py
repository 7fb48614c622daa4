"""Sweeps: shared work, restart after a kill, and equal tables with and without a restart."""

import csv
import json
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import fresh
import pytest

import lrcore
from lrcore.cli import main
from lrcore.compression.solve import refit
from lrcore.methods import find_method
from lrcore.ranks.policies import find_policy
from lrcore.runs.sweep import cross_calibration, included_sweeps
from lrcore.runs.sweep_report import cross_table, points, to_csv
from lrcore.runs.sweep_report import tables as sweep_tables
from lrcore.runs.sweep_rows import COLUMNS, SweepRow, column_names
from lrcore.runs.sweep_store import CellFiles, SweepStore, cells
from lrcore.system.errors import InputError


def finished(model, sweep, folder):
    """Return the rows that are stored in the folder."""
    store = CellFiles(folder)
    return [row for cell in cells(model, sweep) for row in store.finished(cell) or ()]


def test_a_sweep_factorizes_once_per_method_and_repeats_no_work(requested, counted, tmp_path):
    model = lrcore.load(requested.base.model)
    rows = lrcore.run_sweep(model, requested, tmp_path)
    assert counted == {"calibrate": 2, "factorize": 2, "compress": 4, "evaluate": 5}
    assert [(row.method, row.ratio) for row in rows] == [
        ("dense", 0.0),
        ("a3", 0.2),
        ("a3", 0.4),
        ("svd", 0.2),
        ("svd", 0.4),
    ]
    assert (
        lrcore.run_sweep(model, requested, tmp_path) == rows == finished(model, requested, tmp_path)
    )
    assert counted["compress"] == 4
    wider = lrcore.Sweep(
        requested.base,
        [*requested.methods, "svd_llm"],
        ratios=requested.ratios,
        evaluations=requested.evaluations,
    )
    assert lrcore.run_sweep(model, wider, tmp_path)[:5] == rows
    # The dense model is evaluated again, because standard errors of new models need its losses.
    assert counted == {"calibrate": 3, "factorize": 3, "compress": 6, "evaluate": 8}


def test_a_cell_equals_the_result_of_its_recipe(requested, tmp_path):
    model = lrcore.load(requested.base.model)
    row = lrcore.run_sweep(model, requested, tmp_path)[2]
    small = lrcore.compress(model, requested.base.with_(method="a3", ratio=0.4))
    assert (
        row.perplexity
        == lrcore.evaluate(small, requested.base.data, samples=2, seq_len=16).perplexity
    )
    assert row.parameters == small.size.parameters
    assert row.kv_bytes_per_token == small.size.kv_bytes
    assert row.measured_kv_bytes_per_token == row.kv_bytes_per_token
    cost = lrcore.measure_cost(small, row.measured_context)
    assert row.measured_flops_per_token == cost.flops_decode
    assert row.flops_per_token == small.account.model.flops_per_token


def test_a_perplexity_has_the_standard_error_of_its_difference_to_the_dense_model(
    requested, tmp_path
):
    model, evaluation = lrcore.load(requested.base.model), requested.evaluations[0]
    texts = (evaluation, replace(evaluation, samples=4, seq_len=24))
    rows = lrcore.run_sweep(model, replace(requested, evaluations=texts), tmp_path)
    assert [row.perplexity_error for row in rows[:2]] == [None, None]  # the dense model
    for method, ratio, method_rows in (("a3", 0.2, rows[2:4]), ("svd", 0.4, rows[8:])):
        small = lrcore.compress(model, requested.base.with_(method=method, ratio=ratio))
        for row, settings in zip(method_rows, texts, strict=True):
            comparison = lrcore.compare(model, small, settings)
            assert row.perplexity_error == pytest.approx(
                comparison.small.perplexity * comparison.delta_error
            )
            assert row.perplexity_error > 0


def test_a_changed_seed_or_evaluation_is_a_different_cell(requested, tmp_path):
    model = lrcore.load(requested.base.model)
    lrcore.run_sweep(model, requested, tmp_path)
    assert (
        finished(model, replace(requested, base=requested.base.with_(seed=3)), tmp_path)[0].method
        == "dense"
    )
    assert (
        len(finished(model, replace(requested, base=requested.base.with_(seed=3)), tmp_path)) == 1
    )
    assert (
        finished(
            model,
            replace(
                requested, evaluations=(lrcore.EvaluationSettings(requested.base.data, 3, 16),)
            ),
            tmp_path,
        )
        == []
    )


def test_a_cell_that_fails_is_a_row_with_an_error_message(requested, tmp_path):
    rows = lrcore.run_sweep(
        lrcore.load(requested.base.model),
        replace(requested, base=requested.base.with_(budget="kv")),
        tmp_path,
    )
    assert [bool(row.error) for row in rows] == [False, False, False, True, True]
    assert "KV cache" in rows[3].error
    names = [row["name"] for row in lrcore.list_methods() if row["supports"]["kv_budget"]]
    assert rows[3].error.endswith(f": {', '.join(names)}.")
    to_csv(rows)


def test_a_cross_calibration_study_measures_all_pairs(tiny_llama, story_file, tmp_path):
    second_text = tmp_path / "other.txt"
    second_text.write_text(story_file.read_text()[::-1])
    base = lrcore.Recipe(model=str(tiny_llama), samples=4, seq_len=32, ratio=0.4)
    study = cross_calibration(base, [str(story_file), str(second_text)], samples=2)
    rows = lrcore.run_sweep(lrcore.load(str(tiny_llama)), study, tmp_path / "out")
    table = cross_table(rows)
    assert len(table) == 3
    for line in table:
        assert all(isinstance(line[f"on {data}:test"], float) for data in (story_file, second_text))
        errors = [line[f"± on {data}:test"] for data in (story_file, second_text)]
        assert all(error is None if line["method"] == "dense" else error > 0 for error in errors)
    with pytest.raises(lrcore.InputError, match="at least two"):
        cross_calibration(base, ["stories"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"method_s": ["a3"]}, "sweep field"),
        ({"methods": ["a4"]}, "Did you mean 'a3'"),
        ({"ratios": [2]}, "strictly between"),
        ({"evaluation": {"dat": "x"}}, "evaluation setting"),
        ({"evaluation": {"protocol": "nope"}}, "Unknown protocol"),
        ({"evaluation": []}, "has no measurements"),
    ],
)
def test_invalid_sweeps_are_refused_before_any_work(values, words):
    with pytest.raises(lrcore.InputError, match=words):
        lrcore.Sweep.from_dict(values)


class Runs(SweepStore):
    """Store that saves models but does not measure them."""

    def __init__(self):
        self.models, self.kept = {}, {}

    def finished(self, cell):
        return [] if not cell.steps else self.kept.get(cell.key)

    def model(self, cell):
        return self.models.get(cell.key)

    def keep_model(self, cell, model):
        self.models[cell.key] = model

    def keep(self, cell, rows):
        self.kept[cell.key] = rows


def test_sweeps_work_with_a_different_store(requested, counted, tmp_path):
    model, store = lrcore.load(requested.base.model), Runs()
    rows = lrcore.run_sweep(model, requested, store)
    assert len(rows) == 4
    store.kept.popitem()
    assert lrcore.run_sweep(model, requested, store) == rows
    # The stored model was evaluated again, the dense model only once.
    assert (counted["compress"], counted["evaluate"]) == (4, 6)
    files = lrcore.run_sweep(model, requested, tmp_path)[1:]
    for row, file_row in zip(rows, files, strict=True):
        for name in (*column_names("setting"), *column_names("planned"), "perplexity", "nll"):
            assert getattr(row, name) == getattr(file_row, name), name
        assert row.measured_flops_per_token is None
    unmeasured = Runs()
    assert lrcore.run_sweep(model, replace(requested, evaluations=()), unmeasured) == []
    assert len(unmeasured.models) == 4
    with pytest.raises(lrcore.InputError, match="has no measurements"):
        lrcore.run_sweep(model, replace(requested, evaluations=()), tmp_path)


def test_keys_of_cells_are_stable_so_that_old_sweeps_can_be_resumed():
    model = SimpleNamespace(fingerprint="0123abcd", dtype="float32", device="cpu")
    base = lrcore.Recipe(
        options={"rope": "exact", "mlp": "cur"}, component_ratios={"qk": 0.3, "mlp": 0.1}
    )
    sweep = lrcore.Sweep(base, ["a3"], evaluations=(lrcore.EvaluationSettings("stories"),))
    keys = ["eaf0341092cf0d9e794d06b8", "3b22592db781ba1ec0bf36ba"]
    assert [cell.key for cell in cells(model, sweep)] == keys


def test_keys_of_cells_with_refit_depend_on_its_settings(monkeypatch):
    model = SimpleNamespace(fingerprint="0123abcd", dtype="float32", device="cpu")
    evaluations = (lrcore.EvaluationSettings("stories"),)
    sweep = lrcore.Sweep(lrcore.Recipe(), ["a3", "fused"], evaluations=evaluations)
    before = {cell.title: cell.key for cell in cells(model, sweep)}
    monkeypatch.setattr(refit, "TOKENS_PER_FIRST", 8)
    after = {cell.title: cell.key for cell in cells(model, sweep)}
    assert ["fused" in title for title in before] == [
        after[title] != key for title, key in before.items()
    ]


def test_all_columns_have_a_kind_and_a_description():
    assert {column.kind for column in COLUMNS.values()} == {"setting", "planned", "measured"}
    assert all(column.about for column in COLUMNS.values())
    row = SweepRow.of((), {"parameters": 3}, {"perplexity": 2.0}, measured_on="stories")
    assert SweepRow.from_dict(json.loads(json.dumps(row.to_dict()))) == row
    assert not {"kl", "measured_context"} & row.to_dict().keys()


def test_a_sweep_survives_a_json_round_trip(requested):
    assert (
        lrcore.Sweep.from_dict(json.loads(json.dumps(requested.to_dict()))).to_dict()
        == requested.to_dict()
    )


def test_task_scores_and_costs_are_columns(tiny_llama, story_file, tmp_path):
    values = {
        "model": str(tiny_llama),
        "data": str(story_file),
        "samples": 4,
        "seq_len": 32,
        "rows": [["compress", {"quantize": {"bits": 4, "group": 8}}]],
        "evaluation": {"data": str(story_file), "samples": 2, "seq_len": 16},
        "tasks": [{"task": "stories", "items": 3, "shots": 1}, {"items": 2}],
        "speed": True,
    }
    sweep = lrcore.Sweep.from_dict(values)
    assert lrcore.Sweep.from_dict(sweep.to_dict()) == sweep
    model = lrcore.load(str(tiny_llama))
    rows = lrcore.run_sweep(model, sweep, tmp_path)
    assert [row.measured_on for row in rows[3:]] == [
        f"{story_file}:test",
        "task stories, 1 shot",
        "task stories",
    ]
    expected = lrcore.score_choices(model, "stories", 3, shots=1)
    assert (rows[1].accuracy, rows[1].accuracy_error) == (expected.accuracy, expected.error)
    assert rows[1].protocol["shots"] == 1
    assert rows[0].accuracy is rows[1].perplexity is rows[0].making_seconds is None
    assert rows[3].making_seconds > 0
    assert 0 < rows[3].megabytes < rows[0].megabytes
    assert (
        "stories, 1 shot"
        not in sweep_tables(rows, sweep.to_dict())["report.html"].split("All cells")[0]
    )
    with pytest.raises(lrcore.InputError, match="Did you mean 'shots'"):
        lrcore.Sweep.from_dict({**values, "tasks": [{"shot": 2}]})
    with pytest.raises(lrcore.InputError, match="shots"):
        lrcore.Sweep.from_dict({**values, "tasks": [{"shots": -2}]})


def start(file, out):
    command = ["-m", "lrcore", "sweep", str(file), "--out", str(out), "--json"]
    return fresh.project().start(command, os.environ, fresh.ROOT)


def table(process):
    assert process.wait(300) == 0, process.err.read_text()[-2000:]
    return json.loads(process.out.read_text())["rows"]


@pytest.mark.slow
def test_a_killed_sweep_gives_the_same_table_after_a_restart(requested, tmp_path):
    file = tmp_path / "sweep.json"
    file.write_text(
        json.dumps(
            requested.to_dict()
            | {"ratios": [0.1, 0.2, 0.3, 0.4, 0.5], "methods": ["a3", "svd", "svd_llm", "modegpt"]}
        )
    )
    expected = table(start(file, tmp_path / "whole"))
    cells = tmp_path / "killed" / "cells"
    victim, began = start(file, tmp_path / "killed"), time.monotonic()
    while len(list(cells.glob("*.json"))) < 5 and time.monotonic() - began < 120:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(30) == -signal.SIGKILL
    times = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    assert 5 <= len(times) < 21
    restarted = table(start(file, tmp_path / "killed"))
    assert restarted == expected
    assert len(restarted) == 21
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert not list((tmp_path / "killed").rglob("*.tmp")) or all(
        path.name.startswith(".") for path in cells.glob("*.tmp")
    )


def test_the_command_writes_csv_json_and_a_page(requested, tmp_path, capsys):
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(
        json.dumps(
            requested.base.to_dict()
            | {"evaluation": {"data": requested.base.data, "samples": 2, "seq_len": 16}}
        )
    )
    assert (
        main(
            [
                "sweep",
                str(file),
                "--out",
                str(out),
                "--methods",
                "a3,modegpt",
                "--ratios",
                "0.3",
                "--measure-speed",
            ]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert "modegpt" in output
    assert "perplexity_error" in output  # the dense model, in the first row, has none
    lines = list(csv.DictReader((out / "table.csv").open()))
    assert list(lines[0]) == [name for name in COLUMNS if name in lines[0]]
    assert float(lines[1]["perplexity_error"]) > 0
    assert lines[0]["perplexity_error"] == ""
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert (
        [line["method"] for line in lines]
        == [row["method"] for row in rows]
        == ["dense", "a3", "modegpt"]
    )
    assert float(lines[1]["perplexity"]) == rows[1]["perplexity"]
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 4  # parameters, KV bytes, FLOPs, decode time
    assert "://" not in page
    assert "<script" not in page
    assert rows[0]["protocol"]["fingerprint"] in page
    assert len(points([SweepRow.from_dict(row) for row in rows], "time")) == 3
    assert main(["sweep", str(file), "--ratios", "a"]) == 2


def test_a_sweep_file_may_have_anchors_and_exponents(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "x-heal: &heal {steps: 1, lr: 1e-4}\nratios: [1e-1, 2e-1]\n"
        "rows:\n- [compress, heal: *heal]\n"
    )
    chains = list(lrcore.Sweep.read(tmp_path / "a.yaml").cells())
    assert [chain[0].recipe.ratio for chain in chains] == [0.1, 0.2]
    assert {chain[1].settings.lr for chain in chains} == {1e-4}


def test_text_fields_of_a_sweep_file_are_part_of_the_names(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "data: a.jsonl\ntext_field: content\nratios: [0.1]\n"
        "evaluation: {data: b.csv, text_field: body}\n"
    )
    sweep = lrcore.Sweep.read(tmp_path / "a.yaml")
    assert sweep.base.data == "a.jsonl#content"
    assert [settings.data for settings in sweep.evaluations] == ["b.csv#body"]


def test_lists_vary_the_fields_that_rows_do_not_set():
    base = lrcore.Recipe(method="modegpt", options={"x": 1})
    rows = [{"compress": {"method": "a3", "ratio": 0.3}}, "compress"]
    sweep = lrcore.Sweep(base, ratios=[0.1, 0.2], seeds=[1, 2], sample_counts=[4], rows=rows)
    made = [chain[0].recipe for chain in sweep.cells()]
    assert sorted(
        (recipe.method, recipe.ratio, recipe.seed, recipe.samples) for recipe in made
    ) == [
        ("a3", 0.3, 1, 4),
        ("a3", 0.3, 2, 4),
        *(("modegpt", ratio, seed, 4) for ratio in (0.1, 0.2) for seed in (1, 2)),
    ]
    assert [recipe.options for recipe in made if recipe.method == "a3"] == [{}, {}]
    factors = [(recipe.seed, recipe.method) for recipe in made]
    assert len(list(dict.fromkeys(factors))) == 4
    assert factors == sorted(factors, key=list(dict.fromkeys(factors)).index)


def test_temperatures_may_be_a_list():
    base = lrcore.Recipe(method="modegpt", policy="softmax")
    sweep = lrcore.Sweep.from_dict(base.to_dict() | {"temperatures": [0.05, 0.2]})
    assert [chain[0].recipe.temperature for chain in sweep.cells()] == [0.05, 0.2]
    assert sweep.to_dict()["temperatures"] == [0.05, 0.2]
    with pytest.raises(InputError, match="positive number"):
        replace(sweep, temperatures=[-1.0])


@pytest.mark.parametrize("name", included_sweeps())
def test_included_sweeps_are_valid(name):
    sweep = lrcore.Sweep.read(name)
    kv_heads = 32  # of the LLaVA in a table on images
    if "/" not in sweep.base.model:
        config = lrcore.load(sweep.base.model).network.config
        kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    assert len(sweep.cells()) > 2
    for chain in sweep.cells():
        for step in chain:
            if step.kind == "compress":
                options = find_method(step.recipe.method).choose(step.recipe.options)
                # of the model of the table
                assert kv_heads % (getattr(options, "group", 0) or 1) == 0
                find_policy(step.recipe.policy).choose(step.recipe.policy_options)
    assert name.split("-")[0] in ("a3", "modegpt", "latentllm", "care")


def test_the_command_accepts_the_name_of_a_table_and_a_file_of_rows(requested, tmp_path, capsys):
    file, rows = tmp_path / "base.yaml", tmp_path / "rows.yaml"
    evaluation = {"data": requested.base.data, "samples": 2, "seq_len": 16}
    file.write_text(json.dumps(requested.base.to_dict() | {"evaluation": evaluation}))
    rows.write_text("rows:\n  - [compress, {quantise: {group: 16}}]\n")
    command = ["sweep", str(file), "--out", str(tmp_path / "out"), "--seeds", "1,2", "--json"]
    assert main([*command, "--rows", str(rows), "--model", requested.base.model]) == 0
    made = json.loads(capsys.readouterr().out)["rows"]
    assert [(row.get("seed"), row.get("then")) for row in made] == [
        (None, None),
        (1, "hqq 8 bit (group=16)"),
        (2, "hqq 8 bit (group=16)"),
    ]
    assert main([*command, "--rows", str(file)]) == 2
    assert "rows" in capsys.readouterr().err
    assert main(["sweep", "a3-tabel1"]) == 2
    assert "a3-table1" in capsys.readouterr().err
