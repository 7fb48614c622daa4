"""Comparison of runs: tables, differences, protocols, sweeps and the Pareto front."""

import csv
import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from page_values import BROWSER, click

import lrcore
from lrcore.evaluation.evaluation_settings import PROTOCOLS
from lrcore.layers.account import ModelAccount, SizeAndCost
from lrcore.recipes.history import Compressed
from lrcore.recipes.provenance import Provenance
from lrcore.runs.runs import Run
from workbench import words
from workbench.figures.comparison import Panel, Point, front, loss_axis, pareto, ratios, title
from workbench.jobs import SweepJob
from workbench.jobs.models import run_name, unused_name
from workbench.jobs.sweep import table_files
from workbench.state import sweep_runs
from workbench.state.browsers import BrowserState
from workbench.state.job_record import JobRecord
from workbench.state.store import Store
from workbench.tabs.compare import chart, chart_files, chosen_runs, comparison_table, metrics
from workbench.tabs.compare import runs as runs_handlers
from workbench.tabs.runs.runs_table import select_linked
from workbench.views import answer_markup, run_text
from workbench.widgets.evaluation_controls import read_settings
from workbench.widgets.form import input_values

PROTOCOL = {"source": "stories/test", "windows": 2, "seq_len": 8}
DENSE = ModelAccount(10, 10, bytes=2e6, kv_bytes_per_token=8, flops_per_token=9)


def make_run(name, recipe, parameters=8, megabytes=1.0):
    model = replace(DENSE, parameters=parameters, bytes=megabytes * 1e6, flops_per_token=5)
    provenance = Provenance((Compressed(recipe),), account=SizeAndCost(model, DENSE))
    return Run(name, name, 0.0, None, recipe, provenance, (), [])


def add_evaluation(run, perplexity, dense, **extra_figures):
    figures = {
        "perplexity": perplexity,
        "dense_perplexity": dense,
        "protocol": PROTOCOL,
    } | extra_figures
    run.evaluations.append(figures | {"delta": math.log(perplexity / dense)})
    return run


def three_runs():
    """Return two runs of demo-llama and a run of demo-opt between them."""
    names = {"one": "demo-llama", "other": "demo-opt", "third": "demo-llama"}
    first, second, third = (
        make_run(name, lrcore.Recipe(model=model), megabytes=1.0 + (name == "third"))
        for name, model in names.items()
    )
    add_evaluation(first, 3.0, 1.5, kl=0.5, top1=0.75, delta_error=0.01)
    add_evaluation(second, 18.0, 9.0)
    add_evaluation(third, 2.0, 1.5, kl=0.7, top1=0.85)
    return first, second, third


def test_each_dense_model_has_a_table_with_its_runs():
    runs = three_runs()
    protocol = chosen_runs.protocol_of(runs[0], runs[0].evaluations[0])
    first, second = comparison_table.html(metrics.tables(runs, protocol, metrics.Results())).split(
        "<table>"
    )[1:]
    assert "dense · demo-llama" in first
    assert first.count("<th scope='col'>") == 3
    assert "<td>3.0000 ± 0.0300<i>+100.0% vs dense</i></td>" in first
    assert "<b>2.0000</b>" in first  # the lowest perplexity
    assert "<b>0.5000</b>" in first
    assert "<b>85.0%</b>" in first
    assert "1.5000" in first
    assert "dense · demo-opt" in second
    assert "9.0000" in second
    assert "<b>" not in second.partition("</table>")[0]  # no best of a single run


def test_a_run_measured_on_a_different_text_is_compared_with_dense_on_that_text():
    first_run, second_run = make_run("here", lrcore.Recipe()), make_run("there", lrcore.Recipe())
    add_evaluation(first_run, 3.0, 1.5)
    add_evaluation(second_run, 2.2, 2.0, protocol=PROTOCOL | {"source": "other/test"})
    protocol = chosen_runs.protocol_of(first_run, first_run.evaluations[0])
    (table,) = metrics.tables([first_run, second_run], protocol, metrics.Results())
    table_html = comparison_table.html([table])
    assert table.dense.values["perplexity"] == 1.5
    assert "<td>2.2000<i>+10.0% vs dense</i></td>" in table_html
    assert (
        "<b>" not in table_html.partition("</table>")[0]
    )  # perplexities of different texts are not compared


def test_an_unmeasured_run_does_not_hide_the_dense_perplexity():
    """The selected protocol is of a different base model."""
    bare, measured = make_run("bare", lrcore.Recipe()), make_run("measured", lrcore.Recipe())
    add_evaluation(measured, 3.0, 1.5)
    (table,) = metrics.tables([bare, measured], "demo-opt: stories/test", metrics.Results())
    assert table.dense.values["perplexity"] == 1.5


def test_the_downloaded_comparison_is_complete_and_equals_the_displayed_one():
    first, second, third = (replace(run, name="a_b|c & <i>") for run in three_runs())
    compared_tables = metrics.tables([first, second, third], None, metrics.Results())
    assert "<i>&" not in comparison_table.html(compared_tables)
    rows = list(csv.reader(io.StringIO(comparison_table.as_csv(compared_tables))))
    assert rows[0][1:] == [
        "dense · demo-llama",
        *["a_b|c & <i>"] * 2,
        "dense · demo-opt",
        first.name,
    ]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["Perplexity"] == ["1.5", "3.0", "2.0", "9.0", "18.0"]
    assert by_name["Perplexity: standard error"] == ["", "0.03", "", "", ""]
    markdown = comparison_table.as_markdown(compared_tables[:1])
    assert "| Perplexity | 1.5000 | 3.0000 ± 0.0300 | **2.0000** |" in markdown
    assert "a_b\\|c" in markdown
    latex = comparison_table.as_latex(compared_tables[:1])
    assert "a\\_b|c \\& <i>" in latex
    assert "Perplexity & 1.5000 & 3.0000 $\\pm$ 0.0300 & \\textbf{2.0000} \\\\" in latex
    assert latex.count("\\\\\n") == len(compared_tables[0].rows) + 1


def test_the_chart_has_a_panel_for_each_base_model_and_lines_for_each_policy():
    runs = three_runs()
    protocol = chosen_runs.protocol_of(runs[1], runs[1].evaluations[0])
    panels = chart.panels(runs, protocol, "megabytes", {}, ["third"])
    assert [(panel.model, len(panel.runs)) for panel in panels] == [
        ("demo-opt", 1),
        ("demo-llama", 2),
    ]
    figure = json.loads(pareto(panels, "size", ["third"]))
    traces = [trace for trace in figure["data"] if trace["name"] == "a3 · uniform"]
    assert [trace["yaxis"] for trace in traces] == ["y", "y2"]
    assert traces[1]["x"] == [1.0, 2.0]
    assert traces[1]["y"] == pytest.approx([math.log(2), math.log(4 / 3)])
    assert traces[1]["text"] == ["0%", "0%"]
    assert traces[1]["error_y"]["array"] == [0.01, 0]
    rings = [trace["x"] for trace in figure["data"] if trace["name"] == "selected"]
    assert rings == [[], [2.0]]
    assert [figure["layout"][axis]["type"] for axis in ("yaxis", "yaxis2")] == ["log", "log"]
    assert "demo-opt" in figure["layout"]["annotations"][0]["text"]


def test_legend_entries_have_different_colors():
    def point(method, policy, x):
        run = f"{method} {policy}"
        return Point(run, method, x, 2.0, "", run, 0.1, policy=policy, label="20%")

    dense = Point("dense", "dense", 10, 1.5, "", "")
    pairs = [("a3", "uniform"), ("a3", "marginal"), ("svd", "uniform"), ("svd", "marginal")]
    runs = [point(*pair, x) for x, pair in enumerate(pairs)]
    data = json.loads(pareto([Panel("tiny", "", [dense, *runs])], "size", ["a3 uniform"]))["data"]
    legend_traces = [trace for trace in data if trace["showlegend"]]
    colors = [(trace.get("line") or trace["marker"])["color"] for trace in legend_traces[1:]]
    colors.append(legend_traces[0]["marker"]["color"])  # rings have no line
    assert len(legend_traces) == len(set(colors)) == len(pairs) + 3


def test_the_highest_of_close_points_is_labeled_with_their_ratio():
    def point(name, x, excess, label):
        return Point(name, name, x, 2.0, "", name, excess, label=label)

    dense = Point("dense", "dense", 10, 1.5, "", "")
    runs = [
        point("low", 8, 0.01, "20%"),
        point("high", 8.05, 0.02, "20%"),
        point("apart", 9, 0.03, "20%"),
        point("other", 8, 0.03, "25%"),
    ]
    assert ratios(Panel("tiny", "", [dense, *runs])) == {
        "high": "20%",
        "apart": "20%",
        "other": "25%",
    }


def test_a_run_better_than_dense_is_at_the_bottom_of_the_log_axis():
    runs = [make_run(name, lrcore.Recipe()) for name in "ab"]
    add_evaluation(runs[0], 1.4, 1.5)
    add_evaluation(runs[1], 1.6, 1.5)
    (panel,) = chart.panels(runs, None, "megabytes", {}, [])
    better, worse = panel.heights(panel.runs)
    assert 0 < better == panel.floor < worse
    assert min(panel.heights(panel.runs)) > 10 ** loss_axis(panel, [0, 1])["range"][0]


def test_a_click_on_a_point_adds_or_removes_its_run():
    run = make_run("one", lrcore.Recipe())
    stored_runs = SimpleNamespace(all=lambda: [run], ids=lambda: ["one"])
    store = SimpleNamespace(
        runs=stored_runs, runs_by_id=lambda ids: [run for run_id in ids if run_id == "one"]
    )
    point = click(custom=["one", "", "one", "", ""])
    assert runs_handlers.toggle_clicked(store, [], point)["value"] == ["one"]
    assert runs_handlers.toggle_clicked(store, ["one"], point)["value"] == []
    assert runs_handlers.toggle_clicked(store, [], click(custom=None))["__type__"] == "update"


def store_of(made):
    """Return a store with these runs, oldest first."""
    made_by_id = {run.id: run for run in made}
    return SimpleNamespace(
        runs=SimpleNamespace(all=lambda: made, ids=lambda: [*made_by_id], get=made_by_id.get),
        runs_by_id=lambda ids: [made_by_id[run_id] for run_id in ids or [] if run_id in made_by_id],
        browsers=BrowserState(),
    )


def test_the_newest_run_of_the_model_is_compared_unless_the_address_selects_runs():
    made = [make_run(name, lrcore.Recipe()) for name in ("old", "middle", "new")]
    store = store_of([*made, make_run("another model's", lrcore.Recipe("demo-opt"))])

    def listed(ids, recipe):
        return chosen_runs.list_runs(store, BROWSER, ids, None, *input_values(recipe))[0]

    assert listed([], lrcore.Recipe())["value"] == ["new"]
    assert "value" not in listed([], lrcore.Recipe("demo-moe"))
    assert "value" not in listed(["middle"], lrcore.Recipe())
    assert select_linked(store, {"runs": "old,gone,middle"})["value"] == ["old", "middle"]
    assert chosen_runs.add_newest(store, ["old"])[0]["value"] == ["another model's", "old"]
    assert "value" not in chosen_runs.add_newest(store, ["another model's"])[0]


def test_another_model_selects_its_newest_run_once():
    runs_of_models = (lrcore.Recipe(), lrcore.Recipe("demo-opt"))
    store = store_of([make_run(recipe.model, recipe) for recipe in runs_of_models])
    moves = (  # selected run, model of the form, runs that the page selects then
        ([], "demo-llama", ["demo-llama"]),
        (["demo-llama"], "demo-opt", ["demo-opt"]),
        (["demo-llama"], "demo-opt", None),  # selected by the user
        (["demo-llama", "demo-opt"], "demo-llama", None),
        (["demo-llama"], "demo-moe", []),
    )
    for ids, model, expected in moves:
        form = input_values(lrcore.Recipe(model))
        update = chosen_runs.list_runs(store, BROWSER, ids, None, *form)[0]
        assert update.get("value") == expected, model


def test_default_names_of_runs_are_different():
    name = run_name(lrcore.Recipe())
    store = store_of([])
    assert unused_name(store, name) == name
    store = store_of([make_run(name, lrcore.Recipe()), make_run(f"{name} (2)", lrcore.Recipe())])
    assert unused_name(store, name) == f"{name} (3)"


def test_the_default_name_of_a_run_contains_the_model():
    names = [
        run_name(lrcore.Recipe(model=model)) for model in ("demo-llama", "/a/b/tiny/", "org/model")
    ]
    assert names == [f"a3 20% uniform · {name}" for name in ("demo-llama", "tiny", "model")]


def test_differences_list_fields_of_recipes_and_sizes():
    first_run = make_run("a", lrcore.Recipe(), parameters=10_000, megabytes=1.5)
    second_run = make_run("b", lrcore.Recipe(ratio=0.4), parameters=8_000, megabytes=1.5)
    rows = chosen_runs.all_differences([first_run, second_run])
    assert rows[:2] == [["ratio", "0.2", "0.4"], ["parameters", "10,000", "8,000"]]
    assert "megabytes" not in {name for name, *_ in rows}
    assert chosen_runs.all_differences([first_run, first_run]) == []


def test_the_description_of_a_protocol_has_its_name_and_stride():
    plain = {
        "source": "stories/test",
        "windows": 32,
        "seq_len": 256,
        "tokens": 8192,
        "sampling": "first",
        "seed": None,
    }
    assert words.compare_and_runs.protocol(plain) == words.compare_and_runs.protocol(
        plain | {"name": "windows"}
    )
    assert "gptq-2048" in words.compare_and_runs.protocol(plain | {"name": "gptq-2048"})
    assert "stride 64" in words.compare_and_runs.protocol(plain | {"name": "strided", "stride": 64})


def test_the_settings_of_each_protocol_can_be_evaluated(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    for protocol in PROTOCOLS.keys() - {"assistant"}:  # reads conversations
        settings = read_settings(True, str(story_file), 1, 32, protocol)
        assert lrcore.evaluate(model, settings).protocol["name"] == protocol
    assert read_settings(True, "stories", 1, 32).protocol == "windows"


def test_a_sweep_lists_its_cells_and_finds_existing_runs():
    settings = [lrcore.EvaluationSettings("stories", samples) for samples in (2, 3)]
    job = SweepJob(lrcore.Recipe(), ("a3", "svd"), (0.1, 0.2), evaluation=settings[0])
    assert len(job.sweep().cells()) == 4
    wider = replace(
        job, policies=("uniform", "softmax"), calibration_sets=("stories", "python-docs")
    )
    cells = wider.sweep().cells()
    assert wider.title == "Sweep of 16 runs on demo-llama"
    assert len(cells) == 16
    # earlier versions stored only changed settings
    stored = {"settings": {"data": "stories", "samples": 2}}
    history = (Compressed(cells[3]),)
    existing_run = SimpleNamespace(recipe=cells[3], evaluations=[stored], history=history)
    assert sweep_runs.find_run([existing_run], cells[3]) is existing_run
    assert sweep_runs.find_run([existing_run], cells[4]) is None
    assert [sweep_runs.find_evaluation(existing_run, setting) for setting in settings] == [
        stored,
        None,
    ]


def test_a_cross_calibration_study_evaluates_each_run_on_each_text():
    texts = ("stories", "python-docs")
    settings = lrcore.EvaluationSettings("stories", samples=2)
    job = SweepJob(
        lrcore.Recipe(),
        ("a3",),
        (0.2,),
        calibration_sets=texts,
        evaluation=settings,
        cross=True,
    )
    job.check()
    assert job.evaluations() == tuple(replace(settings, data=data) for data in texts)
    assert replace(job, cross=False).evaluations() == (settings,)
    with pytest.raises(lrcore.InputError, match="at least two"):
        replace(job, calibration_sets=("stories",)).check()
    with pytest.raises(lrcore.InputError, match="evaluates all runs"):
        replace(job, evaluation=None).check()


def test_tables_of_a_sweep_equal_those_of_the_command_line(tiny_llama, story_file, tmp_path):
    recipe = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    settings = lrcore.EvaluationSettings(str(story_file), samples=2, seq_len=16)
    job = SweepJob(recipe, ("a3", "svd"), (0.4,), evaluation=settings)
    store, record = Store(tmp_path / "runs"), JobRecord(job)
    record.result = job.run(store, record)
    expected = lrcore.run_sweep(lrcore.load(str(tiny_llama)), job.sweep(), tmp_path / "sweep")
    got_result = json.loads(table_files(record, store.runs)["table.json"])["rows"]
    assert len(got_result) == len(expected) == 3
    for ours, theirs in zip(got_result, expected, strict=True):
        for name in (
            "method",
            "policy",
            "ratio",
            "calibrated_on",
            "measured_on",
            "parameters",
            "kv_bytes_per_token",
            "flops_per_token",
            "context",
            "achieved",
            "protocol",
            "error",
        ):
            assert ours[name] == getattr(theirs, name), name
        assert ours["perplexity"] == pytest.approx(theirs.perplexity, rel=1e-6)
        errors = ours.get("perplexity_error"), theirs.perplexity_error
        assert errors == (None, None) or errors[0] == pytest.approx(errors[1], rel=1e-3)
        assert theirs.measured_context == 127
        assert "measured_context" not in ours
    repeated = JobRecord(job)
    assert job.run(store, repeated) == record.result  # existing runs are reused
    assert sum("already saved" in line for line in repeated.log) == 2
    longer = replace(job, evaluation=replace(settings, seq_len=8))
    assert longer.run(store, JobRecord(longer)) == record.result  # not compressed again
    assert all(len(run.evaluations) == 2 for run in store.runs.all())
    store.delete(record.result[0])
    assert len(json.loads(table_files(record, store.runs)["table.json"])["rows"]) == 2
    with pytest.raises(lrcore.InputError, match="no evaluated runs"):
        table_files(JobRecord(job), store.runs)


def test_a_sweep_skips_impossible_cells_and_may_evaluate_nothing(tiny_llama, story_file, tmp_path):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, budget="kv"
    )
    job, store = SweepJob(recipe, ("care", "svd"), (0.4,)), Store(tmp_path / "runs")
    record = JobRecord(job)
    (run,) = store.runs_by_id(job.run(store, record))
    assert (run.recipe.method, run.evaluations) == ("care", [])
    assert any("skipped" in line for line in record.log)
    alone = replace(job, methods=("svd",))
    with pytest.raises(lrcore.InputError, match="KV"):
        alone.run(store, JobRecord(alone))


def test_the_front_connects_runs_that_are_not_dominated():
    points = [
        Point(str(i), "a", x, y, "", str(i), excess=y)
        for i, (x, y) in enumerate([(1, 5), (2, 3), (3, 4), (4, 1)])
    ]
    (line,) = front(Panel("m", "p", points))
    assert (line["x"], line["y"]) == ([1, 2, 4], [5, 3, 1])


def test_dominated_runs_are_named_with_a_run_that_dominates():
    def point(name, x, y):
        return Point(name, "a", x, y, "", "" if name == "dense" else name)

    dense = point("dense", 5, 1)
    assert chart.conclusion([dense, point("a", 2, 3)]) == words.compare_and_runs.FEW_POINTS
    message = chart.conclusion(
        [dense, point("a", 2, 3), point("b", 3, 4), point("c", 2, 5), point("d", 4, 1)]
    )
    assert message == (
        "Not dominated in size and perplexity: a, d. b is dominated by a. c is dominated by a."
    )
    front = chart.conclusion([dense, *(point(str(i), i / 2, 9 - i) for i in range(6))])
    assert front == "Not dominated in size and perplexity: 0, 1, 2, 3 and 2 more."
    many = chart.conclusion([dense, point("a", 1, 1), *(point(str(i), 2, i + 2) for i in range(7))])
    assert many.endswith("3 is dominated by a. 3 more are dominated.")
    named = [point(f"{name} · tiny", x, y) for name, x, y in (("a", 2, 3), ("b", 3, 4))]
    assert chart.conclusion([dense, *named], "/models/tiny").endswith(": a. b is dominated by a.")


def timed(dense, small, **details):
    speeds = {"dense": dense, "small": small}
    return {name: {"decode": speed, "prefill": 50.0} for name, speed in speeds.items()} | details


def test_measured_times_are_an_axis_in_milliseconds():
    first, second, third = (make_run(name, lrcore.Recipe()) for name in "abc")
    runs = [add_evaluation(run, 2.0, 1.5) for run in (first, second, third)]
    protocol = chosen_runs.protocol_of(first, first.evaluations[0])
    cpu, gpu = {"device": "cpu"}, {"device": "cuda"}
    speeds = {
        "b": timed(100.0, 125.0, where=cpu),
        "c": timed(200.0, 250.0, where=cpu),
    }
    points_by_axis = [
        [(point.name, point.x) for point in chart.points(runs, protocol, axis, speeds)]
        for axis in ("decode", "parameters")
    ]
    assert points_by_axis == [
        [("dense", 7.5), ("b", 8.0), ("c", 4.0)],
        [("dense", 10), ("a", 8), ("b", 8), ("c", 8)],
    ]
    assert chart.points([first], protocol, "decode", {}) == []
    panels = chart.panels(runs, protocol, "decode", speeds, [])
    caption = chart.describe_times(panels, runs, speeds, "decode")
    assert "on cpu, alternating with the dense model, which took 5 to 10 ms per token" in caption
    assert "no time was measured on this device: a." in caption
    assert "1 to 2 ms (x), 3 ms (y) per token" in run_text.times({"x": [1, 2], "/of/y": [3]}, "")
    moved = speeds | {"c": timed(1.0, 1.0, where=gpu)}
    assert {*chart.on_one_device(runs, moved)} == {"c"}
    table = comparison_table.html(
        metrics.tables([second], None, metrics.Results({"b": timed(100.0, 125.0)}))
    )
    assert "<td>100 tokens/s</td><td>125 tokens/s<i>+25.0% vs dense</i></td>" in table


def test_the_caption_of_the_chart_has_model_text_and_seeds_of_each_panel():
    first, second, third = three_runs()
    third = replace(third, recipe=third.recipe.with_(seed=7))
    panels = chart.panels([first, second, third], None, "megabytes", {}, ["one"])
    caption = chart.caption(panels, [first, second, third])
    on = "stories/test · 2 windows × 8 tokens · from the start of the text"
    assert caption == (
        f"demo-llama, measured on {on}, calibrated on stories, seeds 0, 7; "
        f"demo-opt, measured on {on}, calibrated on stories, seed 0"
    )


def test_points_of_the_chart_are_downloaded_with_a_mark_if_not_dominated():
    first, second, third = three_runs()
    first = replace(first, name="a_b|c & <i>")
    panels = chart.panels([first, second, third], None, "megabytes", {}, ["one"])
    rows = list(csv.DictReader(io.StringIO(chart_files.as_csv(panels, "size (MB)"))))
    assert [(row["model"], row["run"], row["size (MB)"]) for row in rows] == [
        ("demo-llama", "dense", "2.0"),
        ("demo-llama", first.name, "1.0"),
        ("demo-llama", "third", "2.0"),
        ("demo-opt", "dense", "2.0"),
        ("demo-opt", "other", "1.0"),
    ]
    assert [row["not dominated"] for row in rows] == ["0", "1", "1", "0", "1"]
    assert float(rows[1]["excess loss (nats/token)"]) == pytest.approx(math.log(2))
    assert [row["standard error"] for row in rows] == ["", "0.01", "", "", ""]
    markdown = chart_files.as_markdown(panels[:1], "size (MB)")
    assert "| **a_b\\|c & <i>** | a3 | uniform | 0% | 1 | 3.0000 | 0.6931 | 0.0100 |" in markdown
    assert "| dense |  |  |  | 2 | 1.5000 |" in markdown
    latex = chart_files.as_latex(panels[:1], "size (MB)")
    assert "\\textbf{a\\_b|c \\& <i>} & a3 & uniform & 0\\% & 1 & 3.0000 &" in latex
    assert latex.count("\\\\\n") == 4


def test_the_title_of_a_panel_has_two_short_lines():
    protocol = "stories/test · 8 windows × 64 = 512 tokens · first windows"
    named = title(Panel("tiny", protocol, []), 1.0)["text"]
    assert named == "<b>tiny</b> · stories/test<br>8 windows × 64 = 512 tokens · first windows"
    assert title(Panel("tiny", "", []), 1.0)["text"] == "<b>tiny</b><br>"


def test_whitespace_is_visible_if_tokens_differ_only_in_whitespace():
    def continued(token):
        return [("One", 0.0, 0.0), (token, 1.0, 1.5), (" had", 1.0, 1.0)]

    continuation = SimpleNamespace(
        tokens=continued("\nTom"), dense=continued(" Tom"), begin=1, first=1
    )
    assert "“↵Tom” instead of “␣Tom”" in answer_markup.divergence(continuation)
