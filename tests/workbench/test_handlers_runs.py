"""The handlers of the sidebar and of the Compress, Compare and Runs tabs."""

import json
import math
import re
import time
from functools import partial
from types import SimpleNamespace

import gradio as gr
import pytest
from page_server import PATIENCE
from page_values import BROWSER, click

import lrcore
from lrcore.system.hardware import Hardware
from workbench import words
from workbench.base import numbers
from workbench.jobs import KINDS, AnalyzeJob, CompressJob
from workbench.state.job_record import ENDED, JobRecord
from workbench.state.store import Store
from workbench.tabs.compare import (
    answers,
    chosen_runs,
    prompt_set,
    runs,
    token_losses,
)
from workbench.tabs.compress import one_run
from workbench.tabs.experiments import pruning, slicing, sweep
from workbench.tabs.runs import derive, details, exports
from workbench.tabs.runs import runs_table as table
from workbench.views import job_markup
from workbench.widgets import polling, selection, sidebar
from workbench.widgets.evaluation_controls import evaluation_fields, read_settings
from workbench.widgets.events import bind
from workbench.widgets.form import input_values
from workbench.widgets.page import put_recipe

EVALUATION = [True, "stories", 2, 16, "windows"]


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4)


@pytest.fixture(scope="module")
def evaluation(recipe):
    return [True, recipe.data, 2, 16, "windows"]


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe, evaluation):
    """Return a store with a run of the Compress tab."""
    store = Store(tmp_path_factory.mktemp("runs"), KINDS)
    (name,) = one_run.start(store, [" first "], *input_values(recipe), evaluation)
    assert name["value"] == ""
    newest_job(store)
    return store


def newest_job(store):
    """Wait until the newest job is done, and return it."""
    record, end = store.jobs.all()[-1], time.monotonic() + PATIENCE
    while record.state not in ENDED:
        assert time.monotonic() < end, record
        time.sleep(0.02)
    assert record.state == "done", record.error
    return record


def test_start_compresses_and_saves_the_described_run(store, recipe, evaluation):
    run = store.runs.all()[0]
    assert run.name == "first"
    description, command = one_run.describe(store, *input_values(recipe), evaluation)
    assert "**a3** will compress" in description
    assert command == recipe.command()
    wrong, command = one_run.describe(
        store, *input_values(recipe), [True, "stories", 2, 1, "windows"]
    )
    assert "at least 2" in wrong
    assert command == ""


def test_a_window_longer_than_the_context_is_refused_before_compressing(store, recipe):
    before = len(store.jobs.all()), len(store.runs.all())
    too_long = [True, words.compress.AS_CALIBRATED, 2, 4096, "windows"]
    with pytest.raises(lrcore.InputError, match="4,096"):
        one_run.start(store, [""], *input_values(recipe), too_long)
    # if the model is not loaded, by the job before it compresses
    settings = lrcore.EvaluationSettings(recipe.data, 2, 4096)
    job, reporter = CompressJob(recipe, "", settings), JobRecord(CompressJob(recipe))
    with pytest.raises(lrcore.InputError, match="4,096"):
        job.run(store, reporter)
    assert reporter.stage == "load"
    assert (len(store.jobs.all()), len(store.runs.all())) == before


def test_the_default_evaluation_matches_the_model_and_its_calibration_text(recipe):
    controls = [field.value for field in evaluation_fields()]
    settings = read_settings(*controls, calibrated_on=recipe.data)
    assert (settings.data, settings.seq_len) == (recipe.data, None)
    model = lrcore.load(recipe.model)  # its context is half of the default window
    assert lrcore.evaluate(model, settings).protocol["seq_len"] == model.context == 128
    assert read_settings(True, "stories", 0, 64, calibrated_on=recipe.data).data == "stories"
    for samples, length in ((-1, 64), (2, 1)):
        with pytest.raises(lrcore.InputError, match="at least"):
            read_settings(True, "stories", samples, length)


def test_a_sweep_without_methods_is_refused(store, recipe, evaluation):
    arguments = [("0.1, 0.2", "", False), *input_values(recipe), evaluation]
    with pytest.raises(lrcore.InputError, match="No method is selected"):
        sweep.start(store, [], [], *arguments)


def test_pruning_and_slicing_have_a_preview(store, recipe):
    store.analysis(recipe)
    figure, caption = pruning.draw(store, [1, "influence", ""], *input_values(recipe))
    assert json.loads(figure)["caption"] == words.spectra.source_caption(
        recipe, words.compress.INFLUENCE
    )
    assert "would be pruned" in caption
    assert len(json.loads(figure)["data"]) == 2
    (sentence,) = slicing.describe(store, [0.3, "block", ""], *input_values(recipe))
    assert "Hidden size: 32 to" in sentence
    with gr.Blocks():
        group = pruning.layout().controls
    fields = pruning.fit_range(store, group, [9, "influence", ""], *input_values(recipe))
    assert (fields[0]["value"], fields[0]["high"]) == (2, 2)


def test_runs_are_listed_compared_and_drawn(store, recipe):
    (run,), form = store.runs.all(), input_values(recipe)
    chosen, protocol = chosen_runs.list_runs(store, BROWSER, [], None, *form)
    measured = protocol["value"]
    assert chosen["value"] == [run.id]
    relisted = chosen_runs.list_runs(store, BROWSER, [run.id], measured, *form)
    # the current selection must not be overwritten
    assert not [part for part in relisted if "value" in part]
    headline, cards, hint = runs.draw_runs(store, [run.id], measured)
    evaluation = run.evaluations[0]
    relative = numbers.relative_change(
        evaluation["perplexity"] / evaluation["dense_perplexity"] - 1
    )
    assert f"{relative} ± " in headline
    assert headline.count("class='cell ") == 4
    assert f"{run.evaluations[0]['perplexity']:.4f}" in cards
    assert words.compare_and_runs.SELECT_TWO in hint
    figure, caption = runs.draw_chart(store, [run.id], measured, "size (MB)")
    assert [t["name"] for t in json.loads(figure)["data"]] == ["selected", "dense", "a3 · uniform"]
    file = json.loads(runs.save_table(store, [run.id], measured, click(form="CSV")))
    assert file["name"] == "comparison.csv"
    assert "first" in file["text"]
    assert words.compare_and_runs.FEW_POINTS in caption
    _, caption = runs.draw_chart(store, [], measured, "decode time per token (ms)")
    assert words.compare_and_runs.NO_SPEED in caption
    with pytest.raises(lrcore.InputError, match="No run"):
        runs.measure_runs(store, [], EVALUATION)


def test_answers_are_streamed_and_a_set_of_prompts_becomes_a_table(store, recipe):
    (run,) = store.runs.all()
    values = [[run.id], *input_values(recipe)]
    *_, (_, generated) = answers.generate(store, "Once", [4, 0, 1, 0], *values)
    assert len(generated.texts) == 2
    assert all(text.startswith("Once") for text in generated.texts)
    frame, csv, markup = prompt_set.answer_all(store, "Once\nTom", [4, 0, 1], *values)
    assert "first: " in markup
    assert "of 2 answers are the same as the dense model" in markup
    assert list(frame["model"]) == ["dense", "first"] * 2
    assert len(csv.splitlines()) >= 5
    assert "second" not in csv  # speeds are only measured alternating with the dense model
    assert "tokens/s" not in [*frame.columns]
    for prompt in ("Once", "Tom"):
        assert markup.count(f"<summary>{prompt}</summary>") == 1
    assert markup.count("<div class='tokens'>") == 2
    assert markup.count("class='scale'") == 1
    with pytest.raises(lrcore.InputError, match="No prompts"):
        prompt_set.answer_all(store, " ", [4, 0, 1], *values)


def test_answers_have_a_speed_only_if_it_was_measured(store, recipe):
    (run,), form = store.runs.all(), input_values(recipe)
    assert "tokens/s" not in "".join(answers.titles(store, [run.id], form))
    speed = {"dense": {"decode": 100.0}, "small": {"decode": 125.0}}
    store.runs.add_result(run.id, "speed", {"device": "cpu"}, speed)
    dense, run_title = answers.titles(store, [run.id], form)
    assert (dense, run_title) == (
        f"dense · {recipe.model} · 100 tokens/s",
        "first · 125 tokens/s",
    )
    *_, (columns, generated) = answers.generate(store, "Once", [4, 0, 1, 0], [run.id], *form)
    assert {*re.findall(r"\d+ tokens/s", columns)} == {"100 tokens/s", "125 tokens/s"}
    redrawn, _ = answers.draw(store, generated, [run.id], *form)
    assert redrawn == columns


def test_the_first_difference_from_the_dense_answer_is_marked(store, recipe):
    (run,) = store.runs.all()
    form, prompt, dense_answer = input_values(recipe), "Once upon", "Once upon a time there was"
    models = answers.compared_models(store, [run.id], form)

    def marked(*texts):
        return answers.mark(store, answers.Generated(models, prompt, texts), [run.id], *form)

    page, generated = marked(dense_answer, "Once upon a time Tom was")
    dense, small = generated.marked
    assert dense.count("class='first'") == small.count("class='first'") == 1
    assert "class='same'" in small
    assert "then “Tom” instead of “there”" in small
    assert dense in page
    assert small in page
    assert "class='scale'" in page
    _, generated = marked(dense_answer, dense_answer)
    assert "Same answer" in generated.marked[1]
    assert "class='first'" not in "".join(generated.marked)
    assert marked("", "") == marked(prompt, dense_answer) == marked() == (gr.skip(), gr.skip())
    long, _ = marked(dense_answer, dense_answer * 99)
    assert "context" in long  # a message instead of an error


def test_answers_stay_until_other_models_are_chosen(store, recipe):
    (run,) = store.runs.all()
    form = input_values(recipe)
    models = answers.compared_models(store, [run.id], form)
    generated = answers.Generated(models, "Once", ("Once upon", "Once more"))
    page, state = answers.draw(store, generated, [run.id], *form)
    assert "Once more" in page
    assert state == gr.skip()
    page, state = answers.draw(store, generated, [], *form)
    assert "Once" not in page
    assert state.texts == ()


def test_tokens_are_colored_by_their_loss(store):
    (run,) = store.runs.all()
    html = token_losses.color_passage(store, "Once upon a time", [run.id])
    assert "nats per token" in html
    assert token_losses.mean_change([("a", 9.0, 9.0), ("b", 1.0, 2.0), ("c", 1.0, 1.0)]) == 0.5


def test_a_run_can_be_displayed_renamed_tagged_and_linked(store):
    (run,) = store.runs.all()
    assert f"data-run='{run.id}'" in table.list_runs(store, {})["html"]
    assert table.open_row(click(run=run.id)) == (run.id, run.id)
    column, heading, labels, *_ = details.show(store, run.id, "")
    assert column["visible"]
    assert "first" in heading
    assert f"perplexity</dfn></span><b>{run.evaluations[-1]['perplexity']:.4f}" in heading
    assert (
        words.compare_and_runs.ON_CALIBRATION_TEXT in heading
    )  # the file is too short for a held-out part
    assert [field["value"] for field in labels] == ["first", ""]
    assert not details.show(store, "gone", "")[0]["visible"]
    details.set_tags(store, run.id, "a, b")
    details.set_tags(store, run.id, "b")
    assert list(store.runs.get(run.id).tags) == ["b"]
    link = partial(table.open_linked, store, "Runs", ("Runs", "Compare"))
    for query in ({"run": run.id}, {"run": run.id, "tab": "no such tab"}):
        opened, tabs = link(query)
        assert (opened, tabs.selected) == (run.id, "Runs")
    assert link({"run": run.id, "tab": "Compare"}) == (run.id, gr.skip())
    assert link({})[0]["__type__"] == "update"
    report = json.loads(details.download_report(store, run.id))
    assert report["text"].startswith("<!doctype html>")
    assert "0,qk" in json.loads(details.download_ranks(store, run.id))["text"]


def test_invalid_settings_are_refused_before_a_job_is_queued(store):
    (run,) = store.runs.all()
    count = len(store.jobs.all())
    with pytest.raises(lrcore.InputError):
        derive.heal(store, run.id, 0, 1e-3, 1.0, 0)
    with pytest.raises(lrcore.InputError, match="owner/name"):
        exports.push(store, run.id, "transformers", "name", True)
    with pytest.raises(lrcore.InputError, match="hf upload"):
        exports.push(store, run.id, "llama.cpp", "me/name", True)
    assert len(store.jobs.all()) == count


def test_a_deleted_run_can_be_restored_until_the_trash_is_emptied(store, recipe, evaluation):
    one_run.start(store, ["second"], *input_values(recipe), evaluation)
    second = newest_job(store).result[0]
    before = store.runs.get(second)
    address, undo, deleted = details.delete(store, second)
    assert (address, deleted, undo["visible"]) == ("", second, True)
    assert "second" in undo["value"]
    assert len(store.runs.all()) == 1
    assert details.restore(store, deleted)[:2] == (second, second)
    assert store.runs.all()[-1] == before
    details.delete(store, second)
    store.runs.empty_trash()
    with pytest.raises(lrcore.InputError, match="permanently"):
        details.restore(store, second)


def test_a_poll_returns_only_changes(store, recipe):
    *first, digests = polling.poll(store, {}, *input_values(recipe))
    assert "Compress" in first[0] or "done" in first[0]
    *unchanged, same = polling.poll(store, digests, *input_values(recipe))
    assert all(change["__type__"] == "update" for change in (*unchanged, same))


def test_an_impossible_budget_does_not_redraw_the_plan(store, recipe):
    """A redraw would remove the message on a typed number."""
    store.factors(recipe)
    with pytest.raises(lrcore.InputError, match="more than this method can remove"):
        store.plan(recipe.with_(ratio=0.995))
    states = [polling.factors_state(store, recipe.with_(ratio=ratio)) for ratio in (0.3, 0.995)]
    assert states[0] == states[1]


def test_a_lost_or_outdated_poll_is_repeated(store, recipe, monkeypatch):
    """The page then has the digests of an older response."""
    # the free memory, which the page shows, changes between polls
    monkeypatch.setattr("workbench.views.memory.hardware", lambda _: Hardware("CPU", "", 1, 2))
    *first, digests = polling.poll(store, {}, *input_values(recipe))
    *repeated, _ = polling.poll(store, {}, *input_values(recipe))
    assert repeated == first
    overtaken = digests | {"0": polling.digest("an older status bar")}
    status_bar, *unchanged, healed = polling.poll(store, overtaken, *input_values(recipe))
    assert status_bar == first[0]
    assert all(change["__type__"] == "update" for change in unchanged)
    assert healed == digests


def test_a_finished_job_describes_and_links_its_run(store):
    (run,), record = store.runs.all(), store.jobs.all()[0]
    recorded = run.evaluations[-1]
    perplexity, dense = recorded["perplexity"], recorded["dense_perplexity"]
    error, change = perplexity * recorded["delta_error"], recorded["delta"]
    assert error > 0
    assert perplexity == pytest.approx(dense * math.exp(change))
    line = (
        f"a3 40% → {perplexity:.4f} ± {error:.4f} "
        f"({numbers.relative_change(perplexity / dense - 1)}), "
        f"{numbers.megabytes(run.account.model.megabytes)}"
    )
    assert record.outcome == line
    assert JobRecord.from_dict(record.to_dict(), KINDS).outcome == line
    row = job_markup.job_row(record, 0)
    assert line in row
    assert "data-action='open'" in row
    _, opened, address, _, tabs = polling.act(store, [], click(action="open", job=record.id))
    assert (opened, address, tabs.selected) == (run.id, run.id, "Runs & export")
    *_, compared, tabs = polling.act(store, [], click(action="compare", job=record.id))
    assert (compared["value"], tabs.selected) == ([run.id], "Compare")
    gone = JobRecord(record.job, state="done", result=["gone"])
    with pytest.raises(lrcore.InputError, match="deleted"):
        polling.runs_of_job(SimpleNamespace(jobs={gone.id: gone}, runs_by_id=lambda _: []), gone.id)


def test_the_finished_job_of_a_deleted_run_offers_to_open_no_run(store, recipe):
    (run,), form = store.runs.all(), input_values(recipe)
    assert any("data-action='open'" in str(part) for part in polling.state(store, form))
    store.discard(run.id)
    shown = "".join(map(str, polling.state(store, form)))
    store.runs.restore(run.id)
    assert "data-action='forget'" in shown  # the job is still listed
    assert "data-action='open'" not in shown
    assert "data-action='compare'" not in shown


def test_a_loss_curve_is_drawn_with_its_first_and_last_loss():
    curve_html = job_markup.loss_curve([2.0, 1.5, 1.0])
    assert "2.000 → 1.000" in curve_html
    assert "points='0.0,2.0 120.0,22.0 240.0,42.0'" in curve_html
    assert job_markup.loss_curve([2.0]) == ""
    long = job_markup.loss_curve([1.0] * 10_000)
    assert long.count(",") < 200


def test_a_finished_job_can_be_removed_from_the_list(store):
    record = store.jobs.all()[0]
    polling.act(store, [], click(action="forget", job=record.id))
    assert store.jobs.get(record.id) is None


def test_an_example_keeps_the_model_and_the_calibration_text(recipe, monkeypatch):
    monkeypatch.setattr(gr, "Info", lambda _: None)
    for _, example in sidebar.example_recipes().values():
        *values, choice = put_recipe(sidebar.with_source(example, recipe))
        assert values[0] == recipe.model
        assert {recipe.data, recipe.samples, recipe.seq_len} <= {str(recipe.data), *values[5:8]}
        assert choice[:2] == [example.method, example.policy]


def test_compress_has_a_check_mark_when_the_job_of_this_browser_is_done(store, recipe, monkeypatch):
    def ticked():
        return json.loads(polling.state(store, input_values(recipe))[-1])[2]

    assert ticked()
    waiting = [JobRecord(CompressJob(recipe))]
    monkeypatch.setattr(store.jobs, "waiting", lambda: waiting)
    assert not ticked()
    waiting[:] = [JobRecord(AnalyzeJob(recipe))]
    assert ticked()
    monkeypatch.setattr(polling, "present_browser", lambda: "mine")
    waiting[:] = [JobRecord(CompressJob(recipe), clients={"theirs"})]
    assert ticked()


def test_curves_of_other_settings_are_marked_as_outdated(store, recipe, monkeypatch):
    other_values = input_values(recipe.with_(seed=77))
    assert words.spectra.STALE in polling.state(store, other_values)[2]
    monkeypatch.setattr(store.jobs, "waiting", lambda: [JobRecord(AnalyzeJob(recipe))])
    hint = polling.state(store, other_values)[2]
    assert words.spectra.STALE_FOR_NOW in hint
    assert "class='note stale'" in hint


def test_empty_and_invalid_fields_are_named_in_an_error_message(store, recipe):
    (run,) = store.runs.all()
    values, chosen = input_values(recipe), [[run.id], *input_values(recipe)]
    sampling = {
        (None, 0, 1, 0): "New tokens",
        (4, None, 1, 0): "temperature",
        (4, 0, 7, 0): "top_p",
    }
    for wrong, name in sampling.items():
        with pytest.raises(lrcore.InputError, match=name):
            list(answers.generate(store, "Once", wrong, *chosen))
        with pytest.raises(lrcore.InputError, match=name):
            prompt_set.answer_all(store, "Once", wrong[:3], *chosen)
    assert (
        words.compress.LAYERS_TO_PRUNE in pruning.draw(store, [None, "influence", ""], *values)[1]
    )
    with pytest.raises(lrcore.InputError, match=words.compress.LAYERS_TO_PRUNE):
        pruning.start(store, [None, "influence", ""], *values, EVALUATION)
    for ratio in (None, 2.0):
        assert "ratio must lie" in slicing.describe(store, [ratio, "block", ""], *values)[0]


def test_a_saved_recipe_can_be_loaded(tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(gr, "Info", lambda _: None)
    file = json.loads(sidebar.save_recipe(*input_values(recipe)))
    path = tmp_path / file["name"]
    path.write_text(file["text"], encoding="utf-8")
    *values, choice = sidebar.load_recipe(str(path))
    assert values[0] == recipe.model
    assert choice[:2] == [recipe.method, recipe.policy]


def test_an_address_selects_a_cell_and_a_tab():
    query = {"tab": "Compare", "layer": "2", "component": "ov"}
    slot, mark, tabs = selection.open_linked(("Spectra", "Compare"), query)
    assert slot == [2, "ov"]
    assert json.loads(mark) == [2, "ov", True]
    assert tabs.selected == "Compare"
    # an earlier click is kept
    plain = selection.open_linked(("Spectra",), {})
    assert [update["__type__"] for update in plain] == ["update"] * 3


def test_a_bound_handler_keeps_its_special_arguments_and_raises_error_messages():
    def handler(store: str, event: gr.EventData, request: gr.Request, *values: int) -> str:
        raise lrcore.InputError("One sentence.")

    listener = bind(handler, "store")
    inputs, _, event_index, _ = gr.helpers.special_args(
        listener, [1], "request", gr.EventData(None, {})
    )
    assert (inputs[0], inputs[2:]) == ("request", ["request", 1])
    assert event_index == 1
    with pytest.raises(gr.Error, match="One sentence"):
        listener(*inputs)

    def stream(store: str, prompt: str):
        yield prompt
        raise ValueError("odd")

    sent = []
    with pytest.raises(gr.Error, match="log has the details"):
        sent.extend(bind(stream, "store")(None, "a"))
