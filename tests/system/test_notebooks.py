"""The notebook in docs/, run from the first cell to the last, and representations of objects in
notebooks.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plotly.colors import get_colorscale

import lrcore
from lrcore.checkpoints.standard.standard_fit import standard_fit
from lrcore.evaluation.compare import Comparison
from lrcore.system.notebooks import RANK_MEASURES, progress_bar
from workbench.figures.spectra import heat_figure

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = json.loads((ROOT / "docs" / "first_steps.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run(cells: list[dict]) -> Iterator[Any]:
    """Yield the displayed value of each cell, that of its last expression."""
    names: dict[str, Any] = {}
    for cell in cells:
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
        if last is not None:
            yield eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)


@pytest.fixture(scope="module")
def displayed(tmp_path_factory) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        patch.setattr("builtins.input", unanswered)
        return [value for value in run(CODE) if value is not None]


def unanswered(question: str = "") -> str:
    """Fail on a question; transformers would turn an ordinary exception into a refusal."""
    raise KeyboardInterrupt(question)


def test_the_notebook_is_stored_without_outputs():
    assert not [cell for cell in CODE if cell["outputs"] or cell["execution_count"]]


def test_the_notebook_contains_the_example_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.split("```python\n")[1].split("```")[0]
    notebook_code = "\n".join("".join(cell["source"]) for cell in CODE)
    missing_lines = [
        line for line in example.splitlines() if line.strip() and line not in notebook_code
    ]
    assert missing_lines == [
        "factors = lrcore.factorize(model, lrcore.calibrate(model, recipe), recipe.method)  # once"
    ]  # the notebook names the calibration, for the analysis


def test_plots_have_a_bar_for_each_slot_and_a_cell_for_each_matrix(displayed):
    spectra, ranks = (value for value in displayed if type(value).__name__ == "Figure")
    assert spectra.data[0].z.shape == (10, 6)  # QK, OV, MLP and seven matrices; six layers
    assert ((spectra.data[0].z > 0) & (spectra.data[0].z <= 1)).all()
    assert spectra.data[0].text.shape == (10, 6)  # a number in each cell
    assert [len(bars.x) for bars in ranks.data] == [6, 6, 6]
    assert {axis.title.text for axis in ranks.select_yaxes()} == {"qk", "ov", "mlp"}


@pytest.mark.parametrize("measure", RANK_MEASURES)
def test_heatmaps_have_the_colors_of_the_page(made, measure):
    analysis = made[4]
    page_trace = json.loads(heat_figure(analysis.table(), measure, "aware"))["data"][0]
    (cells,) = analysis.figure(measure).data
    shares, colors = zip(*get_colorscale(page_trace["colorscale"]), strict=True)
    assert [color for _, color in cells.colorscale] == list(colors)
    assert [share for share, _ in cells.colorscale] == pytest.approx(shares)
    low, high = cells.z.min(), cells.z.max()  # Plotly's limits without zmin and zmax
    limits = (low, high) if cells.zmin is None else (cells.zmin, cells.zmax)
    assert limits == pytest.approx((page_trace["zmin"], page_trace["zmax"]))


def test_tables_and_representations_are_short(displayed):
    (comparison,) = (value for value in displayed if isinstance(value, Comparison))
    assert "same top-1" in comparison._repr_html_()
    assert "nan" not in comparison._repr_html_()
    assert all(
        len(repr(value)) < 300 for value in displayed if type(value).__module__.startswith("lrcore")
    )


@pytest.fixture(scope="module")
def made():
    model = lrcore.load("demo-llama")
    recipe = lrcore.Recipe(method="a3", ratio=0.2, samples=4, seq_len=64)
    calibration = lrcore.calibrate(model, recipe)
    factors = lrcore.factorize(model, calibration, "a3")
    plan = lrcore.allocate(factors, recipe)
    return model, calibration, factors, plan, lrcore.analyze(model, calibration)


def test_representations_of_objects_are_short(made):
    for value in made:
        assert len(repr(value)) < 600
        assert "tensor" not in repr(value)
    assert repr(made[0]) == "LoadedModel('demo-llama', 5,139,712 parameters, float32, on cpu)"
    _, _, factors, plan, _ = made
    assert all(len(repr(spectrum)) < 400 for spectrum in factors.spectra.values())
    step = lrcore.compress(made[0], lrcore.Recipe(method="a3", ratio=0.2), factors, plan).history[0]
    assert len(repr(step)) < 1500  # with its recipe, but without the ranks of all slots
    assert "SlotRank" not in repr(step)
    assert len(repr(replace(standard_fit(made[0], plan), ranks=plan.ranks))) < 300
    assert repr(made[3]).startswith("RankPlan(18 slots in 6 layers; 20.0% of the decoder")


def test_plans_and_analyses_are_displayed_as_tables_by_layer(made):
    _, _, _, plan, analysis = made
    assert f"{plan.ranks[0, 'qk']} of " in plan._repr_html_()
    assert plan._repr_html_().count("<tr") == analysis._repr_html_().count("<tr") == 6 + 2
    page = analysis._repr_html_()
    assert all(f"<th>{name}</th>" in page for name in ("qk", "ov", "mlp", "down"))


def test_a_figure_of_an_unknown_measure_is_refused(made):
    with pytest.raises(lrcore.InputError, match="Did you mean 'stable_rank'"):
        made[4].figure("stable_ranks")
    with pytest.raises(lrcore.InputError, match="kind 'weights'"):
        made[4].figure(kind="weights")


def test_the_progress_bar_has_a_line_per_stage(capsys):
    show = progress_bar()
    for stage, done, total in (("a", 0, 2), ("a", 2, 2), ("a", 2, 2), ("b", 0, 3), ("c", 1, 1)):
        show(stage, done, total)
    output = capsys.readouterr().err
    assert "a: 100%" in output
    assert "b:   0%" in output
    assert "c" not in output
