"""Small parts of the workbench: form, object cache, run folders, figures and texts."""

import json
import pkgutil
import threading
import time

import gradio as gr
import pytest
from page_server import PATIENCE

import lrcore
import workbench.tabs
from lrcore.runs.runs import runs_folder
from workbench import words
from workbench.figures import allocation as allocation_figures
from workbench.figures.base import MAX_POINTS, thinned_indices
from workbench.figures.curves import Curves, curves
from workbench.figures.rank_bars import Bar, RankBars, rank_bars
from workbench.jobs import KINDS, CompressJob
from workbench.state.job_queue import JobQueue
from workbench.state.job_record import JobRecord
from workbench.state.objects import LIMITS, ObjectCache
from workbench.tabs import TABS
from workbench.tabs.experiments.sweep import read_ratios
from workbench.views import answer_markup, job_markup
from workbench.widgets import events, plan_address
from workbench.widgets.form import FIELD_NAMES, START, Form, differences, input_values, read_recipe


@pytest.fixture(scope="module")
def form():
    with gr.Blocks():
        return Form()


@pytest.mark.parametrize(
    "recipe",
    [
        lrcore.Recipe(),
        lrcore.Recipe(
            model="a/b",
            revision="x",
            samples=3,
            policy="softmax",
            temperature=0.3,
            rank_overrides={"0.qk": 8},
            budget="kv",
            seed=5,
        ),
    ],
)
def test_each_recipe_survives_the_round_trip_through_the_form(form, recipe):
    assert read_recipe(input_values(recipe)) == recipe


def test_the_form_has_every_field_of_a_recipe(form):
    assert set(form.parts) == {*lrcore.Recipe().to_dict(), "rule"}


def test_a_policy_without_a_temperature_ignores_the_hidden_slider():
    values = input_values(lrcore.Recipe(policy="softmax", temperature=0.3))
    values[0][FIELD_NAMES.index("policy")] = "marginal"  # the slider is hidden and stays at 0.3
    recipe = read_recipe(values)
    assert recipe.temperature is None
    assert "--temperature" not in recipe.command()
    assert not plan_address.parameters(recipe)["temperature"]


def test_a_new_page_has_the_defaults_of_the_command_line():
    assert lrcore.Recipe() == START


def test_an_empty_field_is_named_in_the_error(form):
    values = input_values(lrcore.Recipe())
    values[0][FIELD_NAMES.index("samples")] = None
    with pytest.raises(lrcore.InputError, match="samples"):
        read_recipe(values)
    values[0][0] = " "
    with pytest.raises(lrcore.InputError, match="model"):
        read_recipe(values)


def test_differences_contain_only_different_fields():
    a, b = lrcore.Recipe(), lrcore.Recipe(ratio=0.4, method="modegpt")
    assert differences([a.to_dict(), b.to_dict()]) == [
        ["method", "a3", "modegpt"],
        ["ratio", "0.2", "0.4"],
    ]
    assert differences([a.to_dict(), a.to_dict()]) == []


def test_the_object_cache_creates_once_and_evicts_the_least_recently_used():
    objects, made = ObjectCache(), []

    def make():
        time.sleep(0.05)
        made.append(1)
        return object()

    threads = [threading.Thread(target=objects.get, args=("dense", "k", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    for i in range(LIMITS["dense"]):
        objects.get("dense", i, object)
    assert objects.peek("dense", "k") is None
    assert objects.peek("dense", LIMITS["dense"] - 1) is not None


def test_run_ids_cannot_leave_the_folder(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "report.json").write_text("{}")
    runs = lrcore.Runs(tmp_path / "runs")
    for wrong in ("../secret", "", "..", "a/b", "missing"):
        with pytest.raises(lrcore.InputError, match="No run"):
            runs.get(wrong)


def test_folders_with_an_invalid_report_are_skipped(tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "report.json").write_text("no json")
    runs = lrcore.Runs(tmp_path)
    assert runs.all() == []


def test_runs_are_saved_elsewhere_with_a_warning_if_the_folder_is_not_writable(
    tmp_path, monkeypatch, capsys
):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LRCORE_RUNS", str(blocked / "runs"))
    folder = runs_folder()
    assert folder.is_dir()
    assert runs_folder() == folder
    error_output = capsys.readouterr().err
    assert error_output.count(f"'{blocked / 'runs'}' is not writable") == 1
    assert f"'{folder}'" in error_output


@pytest.mark.parametrize("count", [1, 7, 500, 501, 4096, 100_000])
def test_thinned_indices_are_sorted_and_include_both_ends(count):
    points = thinned_indices(count)
    assert points[0] == 0
    assert points[-1] == count - 1
    assert points == sorted(set(points))
    assert len(points) <= MAX_POINTS + 1


def test_figures_are_json_without_backgrounds():
    figure = json.loads(
        curves(Curves("singular value", [("aware", [3.0, 2.0, 1.0])], 2, "rank 2", is_log=True))
    )
    assert figure["layout"]["paper_bgcolor"] == figure["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert figure["layout"]["shapes"][0]["x0"] == 2
    bars = json.loads(
        rank_bars(
            RankBars(
                {"qk": [Bar(0, "qk", 3, 4), Bar(1, "qk", 4, 4)]},
                {"qk": [Bar(0, "qk", 3, 4), Bar(1, "qk", 3, 4)]},
            )
        )
    )
    assert bars["data"][1]["y"] == [0.75, 1.0]


def test_forms_of_a_component_are_drawn_side_by_side_in_one_plot():
    narrowed = [Bar(0, "ov", 3, 4, "narrowed"), Bar(1, "ov", 2, 4, "narrowed")]
    pairs = [Bar(1, "v", 6, 8, "pairs", 0, 2), Bar(1, "o", 2, 8, "pairs", 1, 2)]
    figure = json.loads(rank_bars(RankBars({"ov": [narrowed[0], *pairs]}, {"ov": narrowed})))
    gray, ov, v, o, inside, above = figure["data"]
    assert {trace["yaxis"] for trace in figure["data"]} == {"y"}
    assert gray["y"] == [0.75, 0.5]
    assert (ov["x"], v["x"], o["x"]) == ([0], [1], [1])
    assert v["offset"] < v["offset"] + v["width"] < o["offset"]
    assert (inside["text"], above["text"]) == (["3", "6"], ["2"])
    for number, bar in zip([*inside["x"], *above["x"]], (ov, v, o), strict=True):
        assert bar["offset"] < number - bar["x"][0] < bar["offset"] + bar["width"]
    assert v["marker"]["color"] == o["marker"]["color"] != ov["marker"]["color"]
    assert (ov["name"], v["name"]) == ("this allocation: narrowed", "this allocation: pairs")
    assert (v["showlegend"], o["showlegend"]) == (True, False)
    assert figure["layout"]["meta"]["axes"] == {
        "ov": ["y", -0.5, 1.0],
        "v": ["y", -0.5, 0.5],
        "o": ["y", 0.0, 0.5],
    }


@pytest.mark.parametrize(("parts", "tick"), [(3, 0), (7, 0.5)])
def test_numbers_are_inside_their_bars_or_above_low_bars(parts, tick):
    bars = [Bar(0, "ov", 32, 32), Bar(1, "ov", 2, 32)]
    figure = json.loads(rank_bars(RankBars({f"part {i}": bars for i in range(parts)}, {})))
    numbers = [trace for trace in figure["data"] if trace.get("text")]
    assert len(numbers) == 2 * parts
    for inside, above in zip(numbers[::2], numbers[1::2], strict=True):
        assert (inside["x"], inside["y"], inside["text"]) == ([0], [0.5], ["32"])
        assert (above["x"], above["y"], above["text"]) == ([1], [2 / 32], ["2"])
        assert inside["textposition"] == "middle center"
        assert above["textposition"] == "top center"
    axis = figure["layout"]["yaxis2"]
    # a low plot has its name in the place of the labels of its axis
    assert axis["tickvals"][0] == tick
    assert ("part 1" in axis.get("ticktext", [])) == (axis["title"]["text"] == "")


def test_a_failed_job_is_in_the_status_bar_until_marked_as_read(tmp_path):
    def fail(record):
        raise lrcore.InputError("no such text")

    jobs = JobQueue(tmp_path, KINDS, fail)
    job, end = jobs.submit(CompressJob(lrcore.Recipe())), time.monotonic() + PATIENCE
    while not job.ended or job.state != "failed":
        assert time.monotonic() < end
        time.sleep(0.01)
    bar = job_markup.status_bar(jobs)
    assert "no such text" in bar
    assert "data-action='read'" in bar
    jobs.mark_read(job.id)
    assert "Ready" in job_markup.status_bar(jobs)
    assert "no such text" in job_markup.job_list(jobs)  # the list keeps it


def test_error_messages_disappear_after_some_seconds():
    for error in (lrcore.InputError("no"), RuntimeError("broken")):
        assert events.failure_message(error).duration == events.MESSAGE_SECONDS


def test_typed_text_is_escaped():
    job = JobRecord(
        CompressJob(lrcore.Recipe(model="<b>x</b>")), state="failed", error="<script>", log=["<i>"]
    )
    html = job_markup.job_row(job, 0)
    assert "<script>" not in html
    assert "<i>" not in html
    assert "&lt;b&gt;x" in html
    assert "<img" not in answer_markup.colored([("<img>", 1.0, 2.0)])


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, "…"), (3.2, "3 s"), (75, "1 min 15 s"), (3700, "1 h 01 min")]
)
def test_durations_are_formatted(seconds, expected):
    assert words.compress.duration(seconds) == expected


def test_ratios_of_a_sweep_are_validated():
    assert read_ratios("0.1, 0.25", lrcore.Recipe()) == [0.1, 0.25]
    for wrong in ("a", "", "0.1 0.2", "20"):
        with pytest.raises(lrcore.InputError):
            read_ratios(wrong, lrcore.Recipe())


def test_the_selected_policy_is_highlighted_and_drawn_last_for_each_method():
    names = [row["name"] for row in lrcore.list_policies()]
    shares = {method: {name: [0.5, 0.6] for name in names} for method in ("a3", "svd")}
    traces = json.loads(allocation_figures.policy_curves(shares, "softmax"))["data"]
    blue = [trace["line"] == allocation_figures.CHOSEN_LINE for trace in traces]
    assert {trace["name"] for trace, is_chosen in zip(traces, blue, strict=True) if is_chosen} == {
        "softmax"
    }
    assert [i for i, is_chosen in enumerate(blue) if is_chosen] == [
        len(names) - 1,
        2 * len(names) - 1,
    ]
    assert [trace["showlegend"] for trace in traces].count(True) == 1


def test_every_tab_is_listed():
    names = {module.name for module in pkgutil.iter_modules(workbench.tabs.__path__)}
    rows = {tab.__name__.rsplit(".", 1)[1] for tab in TABS}
    assert names == rows, (
        "each module of tabs needs a row in TABS: see 'A tab' in docs/extending.md"
    )
