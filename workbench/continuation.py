"""How a compressed model continues a prompt, token by token beside the dense model."""

from collections.abc import Sequence
from dataclasses import dataclass

import lrcore

NEW_TOKENS = 40  # that each model adds, greedily


@dataclass(frozen=True)
class Continuation:
    """tokens: prompt and continuation by the compressed model, (text, dense loss, compressed loss)
    in nats. dense: prompt and continuation by the dense model, (text, loss). begin: the first token
    that was generated; first: the first that differs from the dense model's.

    error: why there is none.
    """

    tokens: tuple[tuple[str, float, float], ...] = ()
    dense: tuple[tuple[str, float], ...] = ()
    begin: int = 0
    first: int = 0
    error: str = ""


def beside(
    before: Sequence[tuple[str, float]],
    now: Sequence[tuple[str, float]],
    dense: Sequence[tuple[str, float]],
    prompt: str,
) -> Continuation:
    """before, now: the tokens of the compressed model's text with the losses of the dense and of
    the compressed model; dense: the dense model's own text.
    """
    own, others = [token for token, _ in now], [token for token, _ in dense]
    tokens = tuple((token, old, new) for (token, old), (_, new) in zip(before, now, strict=True))
    return Continuation(
        tokens, tuple(dense), generated_from(own, prompt), first_difference(own, others)
    )


def continued(
    model: lrcore.LoadedModel, prompt: str, progress: lrcore.Progress
) -> list[tuple[str, float]]:
    """The tokens of the prompt and its greedy continuation, each with the model's loss, nats.

    Raises InputError for a prompt that fills the context, and Cancelled where `progress` does.
    """
    text = prompt
    for made, piece in enumerate(lrcore.stream(model, prompt, NEW_TOKENS)):
        progress("generate", made, NEW_TOKENS)
        text += piece
    return lrcore.token_losses(model, text)


def compare(
    dense: lrcore.LoadedModel,
    small: lrcore.LoadedModel,
    prompt: str,
    dense_tokens: Sequence[tuple[str, float]],
    progress: lrcore.Progress,
) -> Continuation:
    """dense_tokens: what `continued` gives for the dense model. Raises as `continued` does."""
    now = continued(small, prompt, progress)
    before = lrcore.token_losses(dense, "".join(token for token, _ in now))
    return beside(before, now, dense_tokens, prompt)


def generated_from(tokens: Sequence[str], prompt: str) -> int:
    """The first token that is not of the prompt alone."""
    length = 0
    for i, token in enumerate(tokens):
        length += len(token)
        if length > len(prompt):
            return i
    return len(tokens)


def first_difference(tokens: Sequence[str], others: Sequence[str]) -> int:
    """The first place at which the two differ; their length where they are the same."""
    pairs = enumerate(zip(tokens, others, strict=False))
    shorter = min(len(tokens), len(others))
    return next((i for i, (one, other) in pairs if one != other), shorter)
