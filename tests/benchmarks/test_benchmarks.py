"""The tables in docs/benchmarks/ and the figures derived from the record."""

import math
from dataclasses import replace
from math import exp
from xml.etree import ElementTree

import pytest

import lrcore
from benchmarks import (
    chat,
    fresh_models,
    pareto,
    predictions,
    rankings,
    real_model,
    refit,
    tokens,
)
from benchmarks.paper_tables import check_names, recipes
from benchmarks.perplexity import (
    Selection,
    median_error,
    predicted_table,
    quality_block,
    summary_block,
)
from benchmarks.record import read_record
from benchmarks.report import page_of, wrap
from benchmarks.subjects import RATIOS, REAL_MODEL, Subject
from lrcore.models.hub import DEMO_MODELS

SUBJECTS = (*DEMO_MODELS, "stories260K")


def test_median_error_compares_loss_increases() -> None:
    pairs = [
        (2 * exp(predicted), 2 * exp(actual))
        for predicted, actual in ((0.1, 0.2), (0.3, 0.2), (0.2, 0.2))
    ]
    assert median_error(pairs, 2.0) == pytest.approx(0.5)
    assert median_error([*pairs, (2.1, 1.9)], 2.0) == pytest.approx(0.5)  # no increase


def test_the_option_missing_selects_cells_that_the_record_lacks() -> None:
    recorded = {f"care probed kv {ratio}" for ratio in (0.1, 0.2, 0.3, 0.4)}
    base = lrcore.Recipe()
    selected = Selection(policies=("probed",), missing=True).recipes(base, "care", recorded)
    assert [(recipe.method, recipe.policy, recipe.ratio) for recipe in selected] == [
        ("care", "probed", 0.5)
    ]
    assert len(list(Selection(policies=("probed",)).recipes(base, "care", recorded))) == 5


@pytest.mark.parametrize("architecture", fresh_models.ARCHITECTURES)
def test_a_fresh_model_is_trained_once_and_only_missing_cells_are_measured(
    architecture, monkeypatch, tmp_path, story_file
) -> None:
    sizes = {"STEPS": 2, "BATCH": 1, "VOCABULARY": 300, "LAYERS": 1, "WIDTH": 16}
    for name, value in {**sizes, "FOLDER": tmp_path / "made", "RATIOS": (0.3,)}.items():
        monkeypatch.setattr(fresh_models, name, value)
    for name in ("wikitext2.train.txt", "wikitext2.test.txt"):
        (tmp_path / name).write_text(story_file.read_text(encoding="utf-8"), encoding="utf-8")
    folder = fresh_models.trained_model(architecture, 0, tmp_path)
    monkeypatch.setattr(fresh_models, "train", None)
    assert fresh_models.trained_model(architecture, 0, tmp_path) == folder
    subject = fresh_models.fresh_subject(folder, tmp_path)
    subject = replace(subject, recipe=subject.recipe.with_(samples=2), windows=2)
    monkeypatch.setattr(lrcore, "list_methods", lambda: [{"name": "svd"}])
    monkeypatch.setattr(fresh_models, "POLICIES", ("uniform",))
    entry, saved = {"cells": {}}, []
    fresh_models.fill(entry, subject, lambda: saved.append(dict(entry["cells"])))
    assert list(entry["cells"]) == ["svd uniform params 0.3"]
    assert saved == [entry["cells"]]
    fresh_models.fill(entry, subject, None)  # measures no cell
    increase = math.log(entry["cells"]["svd uniform params 0.3"]["perplexity"] / entry["dense"])
    assert f"| svd | uniform | {increase:.3f} |" in fresh_models.section(architecture, [entry])


def test_increases_on_fresh_models_have_a_standard_deviation_over_seeds() -> None:
    entries = [
        {"dense": 2.0, "cells": {"svd uniform params 0.1": {"perplexity": 2 * exp(increase)}}}
        for increase in (0.1, 0.2, 0.3)
    ]
    text = fresh_models.section("llama", [*entries, {"dense": 2.0, "cells": {}}])
    assert "| svd | uniform | 0.200 ± 0.100 | – | – |" in text


def test_policies_are_compared_with_uniform_ranks_and_probed() -> None:
    cells = {
        f"{method} {policy} params {ratio}": {"perplexity": perplexity}
        for method in rankings.COMPARED_METHODS
        for ratio in RATIOS
        for policy, perplexity in (("uniform", 4.0), ("probed", 2.0), ("owl", 3.0))
    }
    cells["svd owl params 0.5"] = {"perplexity": 5.0}
    cells["a3 mix params 0.5"] = {"perplexity": 1.0}  # a single cell is not compared
    rows = rankings.policies_table({"toy": {"cells": cells}, "empty": {"cells": {}}}).splitlines()
    assert rows[0] == "| policy | toy | best against uniform | worst | better than `probed` |"
    assert rows[2:] == [
        "| `owl` | 29 of 30 | -25.0% | +25.0% | 0 of 30 |",
        "| `probed` | 30 of 30 | -50.0% | -50.0% | – |",
    ]


@pytest.mark.parametrize("title", read_record())
def test_every_perplexity_has_a_standard_error(title: str) -> None:
    cells = read_record()[title]["cells"]
    assert [name for name, cell in cells.items() if not cell["error"] >= 0] == []


def test_tables_match_the_record() -> None:
    record = read_record()
    blocks = {"policies": rankings.policies_table(record)}
    blocks[f"quality {REAL_MODEL}"] = real_model.quality_block(record[REAL_MODEL])
    for title in (*SUBJECTS, REAL_MODEL):
        entry = record[title]
        blocks[f"standing {title}"] = rankings.margins(title, entry, RATIOS)
        blocks[f"trained {title}"] = refit.section(title, entry)
    for title in SUBJECTS:
        entry = record[title]
        blocks[f"quality {title}"] = quality_block(title, entry)
        blocks[f"tokens {title}"] = tokens.section(title)
        blocks[f"measured {title}"] = summary_block(title, entry)
        blocks[f"predicted {title}"] = predicted_table(title, entry)
        blocks[f"interaction {title}"] = predictions.section(title, entry["predictions"])
    for architecture in fresh_models.ARCHITECTURES:
        entries = [record[f"fresh {architecture} {seed}"] for seed in fresh_models.SEEDS]
        blocks[f"fresh {architecture}"] = fresh_models.section(architecture, entries)
    blocks["chat"] = chat.section(record[REAL_MODEL]["chat"])
    for section, block in blocks.items():
        text = page_of(section).read_text(encoding="utf-8")
        written = text.split(f"<!-- begin {section} -->\n")[1].split("\n<!-- end")[0]
        assert written.split("\n\nCells measured")[0] == wrap(block), section


def test_perplexity_falls_if_it_rises_by_at_most_two_standard_errors() -> None:
    def cells(*perplexities: float) -> list[dict[str, float]]:
        return [{"perplexity": perplexity, "error": 0.3} for perplexity in perplexities]

    assert tokens.is_falling(cells(5, 5.8, 4))  # 2 sqrt(0.3² + 0.3²) is 0.85
    assert not tokens.is_falling(cells(5, 5.9, 4))
    assert not tokens.is_falling(cells(5, 5.5, 6))


def test_margins_divide_the_loss_increase_by_the_lowest_increases() -> None:
    cells = {
        f"{pair} params 0.3": {"perplexity": perplexity, "error": 0.25}
        for pair, perplexity in {
            "fused probed": exp(1.1),
            "fused uniform": exp(1.2),
            "a3 uniform": exp(1.4),
            "a3 mix": exp(1.25),
            "svd probed": exp(1.05),
        }.items()
    }
    (row,) = rankings.margin_rows({"dense": exp(1.0), "cells": cells}, (0.3,))
    figures = ["3.004 ± 0.250", "2.858 ± 0.250 svd probed", "+5.13%", "0.25", "0.40"]
    assert row == ["30%", *figures]
    assert rankings.increase_ratio(2.0, 1.0, 1.5) == "–"


def test_the_figure_has_a_point_for_each_measured_cell(tiny_llama, story_file) -> None:
    cell = {"parameters": 2_000_000, "kv_bytes": 64, "perplexity": 1.6}
    cells = {
        "svd uniform params 0.1": dict(cell),
        "fused probed params 0.2": {
            **cell,
            "perplexity": 1.55,
            "milliseconds": 3.5,
            "megabytes": 8,
        },
        "svd probed params 0.1": dict(cell),  # this policy is not in the figure
        "a3 uniform params 0.5": {**cell, "perplexity": 9.0},  # above the figure
    }
    steps = {"slice 10%": {"series": "slice", **cell, "perplexity": 1.7}}
    panels = pareto.points({"cells": cells, "steps": steps})
    names = ["svd 10%", "fused probed 20%", "slice 10%"]
    assert [p.name for p in panels["parameters"]] == [p.name for p in panels["kv_bytes"]] == names
    assert [(p.name, p.x) for p in panels["milliseconds"]] == [(names[1], 3.5)]
    picture = ElementTree.fromstring(pareto.draw(panels))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[:2] == ["svd 10%: 2, perplexity 1.600", "fused probed 20%: 2, perplexity 1.550"]
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
    entry, saved = {"cells": {name: cells[name] for name in list(cells)[:2]}}, []
    pareto.measure_methods(entry, recipe, lambda: saved.append(1))
    assert saved == [1]  # only the cell without figures is measured
    measured = entry["cells"]["svd uniform params 0.1"]
    assert measured["milliseconds"] > 0
    assert measured["megabytes"] > 0
    assert entry["dense_milliseconds"] > 0


def test_steps_without_ranks_are_points_of_the_figure(
    tiny_llama, story_file, monkeypatch, tmp_path
) -> None:
    lists = {"slice": {"slice": {"ratio": [0.1]}}, "quantize": {"quantize": {"bits": [8, 4]}}}
    monkeypatch.setattr(pareto, "STEPS", lists)
    monkeypatch.setattr(pareto, "FOLDER", tmp_path)
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
    subject = Subject("tiny", recipe, "stories", 2, 16)
    record, saved = {}, []
    pareto.measure_steps(subject, record, 3.0, lambda: saved.append(1))
    assert list(record) == ["slice 10%", "nearest 8 bit", "nearest 4 bit"]
    eight, four = record["nearest 8 bit"], record["nearest 4 bit"]
    assert four["megabytes"] < eight["megabytes"]
    assert four["milliseconds"] > 0
    assert four["series"] == "quantize"
    assert len(saved) == 2


def test_tables_of_papers_are_skipped_if_models_are_named(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(lrcore, "load", made.append)
    recipes(["demo-llama"])
    assert made == []
    with pytest.raises(lrcore.InputError, match="modegpt-table2"):
        check_names(["modegpt-table"])
