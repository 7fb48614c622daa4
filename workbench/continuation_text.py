"""What the page shows of a prompt that the models continue as the ranks change."""

from . import markup, run_markup, run_text
from .continuation import Continuation

TITLE = "What the model says now"
PROMPT = "Prompt"
WAITING = "Each model continues the prompt once the ranks on show are measured."
NOTHING = "Type a prompt: each model continues it once the ranks on show are measured."
DENSE, NOW = "dense", "compressed"
PLACE = "continuation"  # the key under which the page is sent it


def waiting(prompt: str) -> str:
    return markup.note(WAITING if prompt else NOTHING, "hint")


def shown(key: str, continuation: Continuation) -> str:
    """Both texts under each other, from where the prompt ends. key: of the ranks on show."""
    if continuation.error:
        said = markup.note(continuation.error, "error")
        return f"<div data-of='{key}'>{said}</div>"
    begin, first = continuation.begin, max(0, continuation.first - continuation.begin)
    dense = tuple((token, loss, loss) for token, loss in continuation.dense[begin:])
    return (
        f"<div class='continued' data-of='{key}' role='status'>"
        f"<span>{DENSE}</span>{run_markup.answer(Continuation(dense, first=first))}"
        f"<span>{NOW}</span>"
        f"{run_markup.answer(Continuation(continuation.tokens[begin:], first=first))}"
        f"{markup.note(run_text.divergence(continuation))}</div>"
    )
