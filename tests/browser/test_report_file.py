"""The report of a comparison, opened as a file without a network."""

import json

import pytest

import lrcore
from lrcore.evaluation.answers import answers_csv
from workbench.state.store import Store
from workbench.tabs.compare import chosen_runs, report
from workbench.tabs.compare.answers import Generated

from .test_hostile_text import ELEMENTS, HOSTILE, PLACES

pytestmark = pytest.mark.browser
SAMPLING = (96, 0.0, 1.0, 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory, tiny_llama, story_file):
    """Return a store with two measured runs, the first with a hostile name."""
    store = Store(tmp_path_factory.mktemp("report") / "runs")
    for name, ratio in ((HOSTILE[:80], 0.3), ("small", 0.5)):
        recipe = lrcore.Recipe(
            str(tiny_llama), data=str(story_file), samples=2, seq_len=32, method="svd", ratio=ratio
        )
        run = store.runs.write(name, recipe, lrcore.compress(lrcore.load(recipe.model), recipe))
        measured = {"perplexity": 5.0 + ratio, "dense_perplexity": 4.0, "delta_error": 0.01}
        protocol = {"source": HOSTILE, "windows": 2, "seq_len": 32}
        store.runs.add_evaluation(run.id, measured | {"protocol": protocol})
    return store


def test_a_report_opens_offline_and_shows_all_answers_as_text(browser, store, tmp_path):
    runs = store.runs.all()
    names = ["dense", *(run.name for run in runs)]
    protocol = chosen_runs.protocol_of(runs[0], runs[0].evaluations[0])
    prompt, question = f"Once {HOSTILE}", f"Why {HOSTILE}?"
    answers = [f" upon a time {i} {HOSTILE}" for i in range(3)]
    chats = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": f"Because {i}."}]
        for i in range(3)
    ]
    rows = [
        {"prompt": f"{HOSTILE} prompt {p}", "model": name, "answer": f"{name} {p}", "error": ""}
        for p in range(2)
        for name in names
    ]
    generated = Generated((), prompt, tuple(prompt + answer for answer in answers))
    ids = [run.id for run in runs]
    values = (SAMPLING, chats, answers_csv(rows), generated)
    file = json.loads(report.save_report(store, ids, protocol, *values))
    assert file["name"] == "comparison.html"
    path = tmp_path / file["name"]
    path.write_text(file["text"], encoding="utf-8")
    assert path.stat().st_size < 100_000

    context = browser.new_context(bypass_csp=True)  # without the file's policy
    page, requests, messages = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    page.goto(path.as_uri())
    text = page.locator("body").text_content()
    for expected in (prompt, question, *answers, *(f"Because {i}." for i in range(3))):
        assert expected in text
    for row in rows:
        assert row["prompt"] in text
        assert row["answer"] in text
    for run in runs:
        assert run.name in text
        assert f"{run.evaluations[0]['perplexity']:.4f}" in text
    assert page.locator("mark").count() > 2
    assert page.locator("section").count() == 4 * 3
    assert page.locator("svg").count() == 4  # size, parameters, KV cache, FLOPs
    assert page.locator("svg circle title").count() == 4 * 3
    assert page.locator(ELEMENTS).evaluate_all(PLACES) == []
    assert page.locator("script, img, link, iframe, form").count() == 0
    assert page.evaluate("window.injected") is None
    assert requests == [path.as_uri()]
    assert messages == []
    context.close()


def test_a_report_omits_answers_of_other_models(store):
    ids = [run.id for run in store.runs.all()]
    generated = Generated((), "Once", ("Once a", "Once b"))
    text = json.loads(report.save_report(store, ids, None, SAMPLING, [], "", generated))["text"]
    assert "Once" not in text


def test_a_report_needs_a_run_but_no_answers(store):
    with pytest.raises(lrcore.InputError, match="No run is selected"):
        report.save_report(store, [], None, SAMPLING, [], "", Generated())
    ids = [run.id for run in store.runs.all()][:1]
    text = json.loads(report.save_report(store, ids, None, SAMPLING, [], "", Generated()))
    assert "<section>" not in text["text"]
