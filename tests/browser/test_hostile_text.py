"""HTML and scripts as text of all displayed fields, in a browser without the page's policy: no text
becomes an element, and no request goes to other hosts or to the hub.
"""

import json
import shutil
from urllib.parse import urlencode, urlsplit

import pytest
from loopback_hub import serve
from page_server import Server

import lrcore
from lrcore.runs.database import Database

from .page import PATIENCE, SCRIPT, VISITED, Workbench

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

PLACES = """elements => elements.map(element => {
  const named = element.closest("[id]"), parent = element.parentElement.outerHTML;
  return `${named?.id}: ${parent.slice(0, 300)}`;
})"""


@pytest.fixture(scope="module")
def local_hub(tiny_llama, tmp_path_factory):
    """Return a local hub, which records its requests."""
    with serve({"owner/tiny": tiny_llama}) as hub:
        yield hub


@pytest.fixture(scope="module")
def hostile_server(chat_llama, tmp_path_factory, cache, local_hub, story_text):
    """Return a server with a run that has hostile name, tags, tokens, samples, text and
    model card.
    """
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
    )  # written past the check of tags, as by other software
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
    """Return a page of a browser that would follow requests in the text, and the hosts it
    requests.
    """
    context = browser.new_context(viewport={"width": 1360, "height": 900}, bypass_csp=True)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(SCRIPT)
    context.add_init_script(VISITED)
    hosts = []
    context.on("request", lambda request: hosts.append(urlsplit(request.url).netloc))
    page = context.new_page()
    query = dict.fromkeys(("model", "data", "method", "policy", "layer", "component"), HOSTILE)
    query["runs"] = hostile_server.run
    page.goto(f"{hostile_server.url}/?{urlencode(query)}", wait_until="commit")
    yield Workbench(page), hosts
    context.close()


def show_all(workbench, title):
    """Open a tab and all its folds."""
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
    """Type hostile text into the visible ones of these fields, and return the names of the
    fields.
    """
    write = "([id, text]) => tests.feed(id, text)"
    are_fed = {
        field_id for field_id in sorted(field_ids) if workbench.evaluate(write, [field_id, HOSTILE])
    }
    workbench.answered()
    return are_fed


def test_no_text_becomes_an_element_or_a_request(page, hostile_server):
    workbench, hosts = page
    workbench.analyzed()
    remaining_ids = set(workbench.evaluate("tests.textFields()"))
    assert len(remaining_ids) > 15
    titles = list(dict.fromkeys(workbench.locator("#tabs [role=tab]").all_inner_texts()))
    assert len(titles) > 3
    assert [field_id for field_id in remaining_ids if field_id.startswith("without a name")] == []

    def are_fed():
        for title in titles:
            show_all(workbench, title)
            remaining_ids.difference_update(feed_all(workbench, remaining_ids))
            assert workbench.locator(ELEMENTS).evaluate_all(PLACES) == [], title
        return not remaining_ids

    workbench.until(are_fed, "a text field was never visible")
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


def test_a_typed_hub_model_is_requested_only_when_it_is_analyzed(page, local_hub):
    workbench, _ = page
    workbench.analyzed()
    for field, name in (("field-model", "owner/tiny"), ("field-data", "owner/texts")):
        workbench.type_into(field, name)
    workbench.tab("Allocation")
    workbench.looked(2)
    assert local_hub.requests == []
    workbench.type_into("field-data", "stories")
    workbench.click("#analyse")
    workbench.until(lambda: local_hub.requests, "no request reaches the hub")
