"""Text generation, piece by piece. Closing the iterator stops generation at the next token."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.chat_template import Messages, has_template, render, without_template
from ..data.tokens import encoded
from ..models.kv_cache import forward_with_cache
from ..models.load import LoadedModel
from ..recipes.generation_settings import GenerationSettings
from ..system.errors import InputError

_REPLACEMENT = "\ufffd"  # decoded from the bytes of an incomplete character


def stream(
    model: LoadedModel,
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece; settings as in `GenerationSettings`.

    Generation ends after max_new_tokens, at an end-of-sequence token, or if the context is full.
    Raises InputError before the first piece if the prompt is empty or fills the context, or if a
    setting is out of range.
    """
    settings = GenerationSettings(max_new_tokens, temperature, top_p, seed)
    return (text for text, _ in stream_with_counts(model, prompt, settings))


def stream_with_counts(
    model: LoadedModel, prompt: str, settings: GenerationSettings
) -> Iterator[tuple[str, int]]:
    """Yield the pieces of `stream`, each with the number of tokens generated so far.

    Raises InputError like `stream`.
    """
    # with the special tokens that the tokenizer prepends
    ids = encoded(model.tokenizer, prompt).input_ids if prompt else []
    if not ids:
        raise InputError("The prompt is empty. Enter at least one word.")
    return _continued(model, ids, settings)


def stream_answer(
    model: LoadedModel, messages: Messages, settings: GenerationSettings
) -> Iterator[tuple[str, int]]:
    """Yield the answer of the assistant to messages {"role", "content"}, like `stream_with_counts`.

    The chat template of the tokenizer renders the messages. Raises InputError like `stream`, if
    the tokenizer has no chat template, and if the template cannot render the messages.
    """
    if not has_template(model.tokenizer):
        raise without_template("A chat has messages", "continue a prompt without a chat")
    text = render(model.tokenizer, messages, add_generation_prompt=True)
    ids = encoded(model.tokenizer, text, add_special_tokens=False).input_ids
    return _continued(model, ids, settings)


def generate(
    model: LoadedModel,
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> str:
    """Return the continuation of `prompt` as one string, without the prompt.

    Raises InputError like `stream`.
    """
    return "".join(stream(model, prompt, max_new_tokens, temperature, top_p, seed))


class Decoder:
    """Incremental decoding: the joined pieces equal the text of all tokens decoded together.

    A character of several tokens is returned with the last token. The leading space of a token is
    preserved, because each token is decoded together with the previous tokens.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, ids: list[int], skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._ids, self._start, self._read = list(ids), 0, len(ids)

    def add(self, token: int) -> str:
        """Return the text that `token` completes; "" while a character is incomplete."""
        self._ids.append(token)
        return self._advance(final=False)

    def flush(self) -> str:
        """Return the remaining text, with replacement characters for incomplete characters."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        previous_text = self._text(self._ids[self._start : self._read])
        text = self._text(self._ids[self._start :])
        if text.endswith(_REPLACEMENT) and not final:
            return ""
        self._start, self._read = self._read, len(self._ids)
        return text[len(previous_text) :]

    def _text(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False
        )
        return text


def _continued(
    model: LoadedModel, ids: list[int], settings: GenerationSettings
) -> Iterator[tuple[str, int]]:
    """Return `_pieces` after a prompt of at least one token, up to the context of the model."""
    if model.context is not None and len(ids) >= model.context:
        raise InputError(
            f"The prompt has {len(ids):,} tokens, but the model's context holds "
            f"{model.context:,}. Shorten the prompt."
        )
    model.check_tokens(max(ids))
    if model.context is not None:
        limit = min(settings.max_new_tokens, model.context - len(ids))
        settings = replace(settings, max_new_tokens=limit)
    return _pieces(model, ids, settings)


def _pieces(
    model: LoadedModel, ids: list[int], settings: GenerationSettings
) -> Iterator[tuple[str, int]]:
    generator = torch.Generator().manual_seed(settings.seed)
    decoder, end_tokens = Decoder(model.tokenizer, ids), _ends(model)
    new_tokens, cache = torch.tensor([ids], device=model.device), None
    count = 0
    while count < settings.max_new_tokens:
        logits, cache = _step(model, new_tokens, cache)
        token = _choose(logits, settings, generator)
        if token in end_tokens:
            break
        count += 1
        piece = decoder.add(token)
        if piece:
            yield piece, count
        new_tokens = torch.tensor([[token]], device=model.device)
    remaining_text = decoder.flush()
    if remaining_text:
        yield remaining_text, count


@torch.inference_mode()
def _step(model: LoadedModel, new_tokens: Tensor, cache: object | None) -> tuple[Tensor, object]:
    """Return the logits [vocab] after the new tokens [1, t], float32 on the CPU, and the cache.

    Inference mode covers a single step: across a `yield`, it would leak into the caller.
    """
    output, cache = forward_with_cache(model.network, new_tokens, cache, logits_to_keep=1)
    return output.logits[0, -1].float().cpu(), cache


def _choose(logits: Tensor, settings: GenerationSettings, generator: torch.Generator) -> int:
    """Return the next token for logits [vocab]."""
    if not bool(torch.isfinite(logits.max())):
        raise InputError(
            "The output of the model is not finite, so no token can be chosen. Use dtype float32 "
            "or a lower ratio."
        )
    if settings.temperature == 0:
        return int(logits.argmax())
    shifted = logits.double() - logits.max().double()  # at most 0: finite at any temperature
    probabilities = torch.softmax(shifted / settings.temperature, 0)
    sorted_probabilities, order = probabilities.sort(descending=True, stable=True)
    # the smallest set of tokens whose probability reaches top_p; never empty
    is_candidate = sorted_probabilities.cumsum(0) - sorted_probabilities < settings.top_p
    return int(
        order[torch.multinomial(sorted_probabilities * is_candidate, 1, generator=generator)]
    )


def _ends(model: LoadedModel) -> set[int]:
    """Return the end-of-sequence tokens of the generation config and of the tokenizer."""
    configured = model.network.generation_config.eos_token_id
    ends = {
        model.tokenizer.eos_token_id,
        *(configured if isinstance(configured, list) else [configured]),
    }
    return {end for end in ends if end is not None}
