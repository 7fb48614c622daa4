"""Text of HTML and scripts in every place that the page shows text in, in a browser without the
page's policy: nothing of it becomes an element, and nothing is asked of another host or of the hub.
"""

import json
import shutil
from urllib.parse import urlencode, urlsplit

import pytest
from loopback_hub import serve
from page_server import Server

import lrcore
from lrcore.runs.database import Database

from .page import PATIENCE, SCRIPT, Workbench

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ELSEWHERE = "elsewhere.example"
HOSTILE = (
    f"<img src='http://{ELSEWHERE}/x.png' onerror='window.injected=1'>"
    f"<script src='http://{ELSEWHERE}/x.js'></script><svg onerror='1' onload='window.injected=1'>"
    f"![x](http://{ELSEWHERE}/y.png) [x](javascript:window.injected=1) {{{{ 7*7 }}}}"
)
TOKEN = f"<img/src='//{ELSEWHERE}/t.png'>"
ELEMENTS = ", ".join(
    (f"[src*='{ELSEWHERE}']", f"[href*='{ELSEWHERE}']", "[href^='javascript:']", "[onerror]")
)

PLACES = """found => found.map(one => {
  const named = one.closest("[id]"), place = one.parentElement.outerHTML;
  return `${named?.id}: ${place.slice(0, 300)}`;
})"""


@pytest.fixture(scope="module")
def local_hub(tiny_llama, tmp_path_factory):
    """What a hub on this machine was asked for."""
    with serve({"owner/tiny": tiny_llama}) as hub:
        yield hub


@pytest.fixture(scope="module")
def hostile_server(chat_llama, tmp_path_factory, cache, local_hub, story_text):
    """A server with a run whose name, tags, tokens, samples, text and model card are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    model = folder / "model"
    shutil.copytree(chat_llama, model)
    tokens = json.loads((model / "tokenizer.json").read_text())
    tokens["added_tokens"][0]["content"] = TOKEN
    vocabulary = tokens["model"]["vocab"]
    vocabulary[TOKEN] = vocabulary.pop("<s>")
    (model / "tokenizer.json").write_text(json.dumps(tokens))
    (model / "README.md").write_text(f"---\nlicense: '{TOKEN}'\n---\n# {HOSTILE}\n{HOSTILE}\n")
    (folder / "text.txt").write_text(f"{HOSTILE} {TOKEN} {story_text}")
    recipe = lrcore.Recipe(
        str(model), data=str(folder / "text.txt"), method="svd", samples=2, seq_len=32, ratio=0.3
    )
    runs = lrcore.Runs(folder / "runs")
    run = runs.write(HOSTILE, recipe, lrcore.compress(lrcore.load(str(model)), recipe))
    Database(folder / "runs" / "runs.sqlite").tag(
        run.id, TOKEN
    )  # no tag, but that of another program
    runs.add_samples(run.id, [{"prompt": HOSTILE, "text": HOSTILE, "settings": {}}])
    hub_environment = {
        "HF_ENDPOINT": local_hub.endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(folder / "hf"),
    }
    server = Server(folder, cache, NO_PROXY="*", **hub_environment)
    server.run = run.id
    yield server
    server.stop()


@pytest.fixture
def page(browser, hostile_server):
    """A page whose browser would follow whatever the text asks for, and what it asked for."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, bypass_csp=True)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(SCRIPT)
    hosts = []
    context.on("request", lambda one: hosts.append(urlsplit(one.url).netloc))
    page = context.new_page()
    query = dict.fromkeys(("model", "data", "method", "policy", "layer", "component"), HOSTILE)
    query["runs"] = hostile_server.run
    page.goto(f"{hostile_server.url}/?{urlencode(query)}", wait_until="commit")
    yield Workbench(page), hosts
    context.close()


def show_all(workbench, title):
    """Open a tab and all that is folded in it."""
    workbench.tab(title)
    workbench.answered()
    if title == "Runs & export" and not workbench.locator("#run-details").is_visible():
        workbench.locator("#runs-table [role=gridcell]", has_text="<img").first.click()
        workbench.locator("#run-heading h3").wait_for()
    closed = workbench.locator("button.label-wrap:not(.open):visible")
    while closed.count():
        closed.first.click()
        workbench.evaluate("tests.frames()")


def feed_all(workbench, field_ids):
    """Write into the fields of these that are on show; which they are."""
    write = "([id, text]) => tests.feed(id, text)"
    fed = {
        field_id for field_id in sorted(field_ids) if workbench.evaluate(write, [field_id, HOSTILE])
    }
    workbench.answered()
    return fed


def test_no_text_becomes_an_element_or_a_request(page, hostile_server):
    workbench, hosts = page
    workbench.analyzed()
    remaining_ids = set(workbench.evaluate("tests.textFields()"))
    assert len(remaining_ids) > 15
    titles = list(dict.fromkeys(workbench.locator("#tabs [role=tab]").all_inner_texts()))
    assert len(titles) > 3
    assert [field_id for field_id in remaining_ids if field_id.startswith("without a name")] == []

    def fed():
        for title in titles:
            show_all(workbench, title)
            remaining_ids.difference_update(feed_all(workbench, remaining_ids))
            assert workbench.locator(ELEMENTS).evaluate_all(PLACES) == [], title
        return not remaining_ids

    workbench.until(fed, "a text field is not fed")
    workbench.tab("Compare")
    workbench.type_into("passage", f"{TOKEN} a red ball{TOKEN}")
    workbench.click("#colour")
    colored = workbench.locator("#coloured")
    workbench.until(lambda: colored.inner_text().count("<img") > 2, "no token is coloured")
    workbench.type_into("prompt", TOKEN)
    workbench.click("#generate")
    workbench.until(lambda: workbench.answer(1).startswith(TOKEN), "nothing is generated")
    marked = workbench.locator("#answer-1 .tokens")
    workbench.until(lambda: "<img" in marked.inner_text(), "no answer is shown by token")
    assert workbench.locator(ELEMENTS).evaluate_all(PLACES) == []
    assert ELSEWHERE in workbench.page.content()  # as text
    assert workbench.evaluate("window.injected") is None
    assert set(hosts) <= {urlsplit(hostile_server.url).netloc, ""}


def test_a_model_that_is_typed_is_asked_for_once_somebody_analyses_it(page, local_hub):
    workbench, _ = page
    workbench.analyzed()
    for field, name in (("field-model", "owner/tiny"), ("field-data", "owner/texts")):
        workbench.type_into(field, name)
    workbench.tab("Allocation")
    workbench.looked(2)
    assert local_hub.requests == []
    workbench.type_into("field-data", "stories")
    workbench.click("#analyse")
    workbench.until(lambda: local_hub.requests, "the hub is not asked")
