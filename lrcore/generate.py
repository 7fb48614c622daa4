"""Text from a model, piece by piece. Closing the iterator stops the work at the next token."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .data.tokens import encoded
from .errors import InputError
from .generation_settings import GenerationSettings
from .models.cached import cached
from .models.load import LoadedModel

_REPLACEMENT = "\ufffd"  # what a tokenizer shows for the bytes of an unfinished character


def stream(
    model: LoadedModel,
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece; the settings of `GenerationSettings`.

    Ends after max_new_tokens, at an end-of-sequence token, or when the model's context is full.
    Raises InputError, before the first piece, where the prompt is empty or fills the context, or a
    setting is out of range.
    """
    settings = GenerationSettings(max_new_tokens, temperature, top_p, seed)
    return (text for text, _ in counted(model, prompt, settings))


def counted(
    model: LoadedModel, prompt: str, settings: GenerationSettings
) -> Iterator[tuple[str, int]]:
    """The pieces that `stream` yields, each with how many tokens were made so far.

    Raises InputError as `stream` does.
    """
    ids = _prompt_ids(model, prompt)
    if model.context is not None:
        most = min(settings.max_new_tokens, model.context - len(ids))
        settings = replace(settings, max_new_tokens=most)
    return _pieces(model, ids, settings)


def generate(
    model: LoadedModel,
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> str:
    """The continuation that `stream` yields, as one string without the prompt.

    Raises InputError as `stream` does.
    """
    return "".join(stream(model, prompt, max_new_tokens, temperature, top_p, seed))


class Decoder:
    """Incremental decoding: the pieces joined are the text of all tokens decoded together.

    A character split over several tokens is returned whole, with the last of them. A token's
    leading space is kept, because each token is decoded together with the ones before it.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, ids: list[int], skip_special: bool = True
    ) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        self._ids, self._start, self._read = list(ids), 0, len(ids)

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished."""
        self._ids.append(token)
        return self._advance(final=False)

    def rest(self) -> str:
        """The text left at the end: replacement characters for bytes that form no character."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        before = self._text(self._ids[self._start : self._read])
        now = self._text(self._ids[self._start :])
        if now.endswith(_REPLACEMENT) and not final:
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _text(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False
        )
        return text


def _prompt_ids(model: LoadedModel, prompt: str) -> list[int]:
    """The prompt's tokens, with the special ones the tokenizer puts in front."""
    ids = encoded(model.tokenizer, prompt).input_ids if prompt else []
    if not ids:
        raise InputError("The prompt is empty. Give at least one word to continue.")
    if model.context is not None and len(ids) >= model.context:
        raise InputError(
            f"The prompt has {len(ids):,} tokens, but the model's context holds "
            f"{model.context:,}. Shorten the prompt."
        )
    model.check_tokens(max(ids))
    return ids


def _pieces(
    model: LoadedModel, ids: list[int], settings: GenerationSettings
) -> Iterator[tuple[str, int]]:
    generator = torch.Generator().manual_seed(settings.seed)
    decoder, ends = Decoder(model.tokenizer, ids), _ends(model)
    fresh, cache = torch.tensor([ids], device=model.device), None
    made = 0
    while made < settings.max_new_tokens:
        logits, cache = _step(model, fresh, cache)
        token = _choose(logits, settings, generator)
        if token in ends:
            break
        made += 1
        piece = decoder.add(token)
        if piece:
            yield piece, made
        fresh = torch.tensor([[token]], device=model.device)
    rest = decoder.rest()
    if rest:
        yield rest, made


@torch.inference_mode()
def _step(model: LoadedModel, fresh: Tensor, cache: object | None) -> tuple[Tensor, object]:
    """Logits [vocab], float32 on the CPU, after the fresh tokens [1, t], and the grown cache.

    Inference mode covers one step only: held across a `yield` it would leak into the caller.
    """
    out, cache = cached(model.network, fresh, cache, logits_to_keep=1)
    return out.logits[0, -1].float().cpu(), cache


def _choose(logits: Tensor, settings: GenerationSettings, generator: torch.Generator) -> int:
    """The next token by logits [vocab]."""
    if not bool(torch.isfinite(logits.max())):
        raise InputError(
            "The model's output is not finite, so there is no next token. Try dtype float32, or a "
            "lower ratio."
        )
    if settings.temperature == 0:
        return int(logits.argmax())
    below = logits.double() - logits.max().double()  # 0 at most: no temperature makes it infinite
    probabilities = torch.softmax(below / settings.temperature, 0)
    shares, order = probabilities.sort(descending=True, stable=True)
    # the smallest set that reaches top_p; never empty
    kept = shares.cumsum(0) - shares < settings.top_p
    return int(order[torch.multinomial(shares * kept, 1, generator=generator)])


def _ends(model: LoadedModel) -> set[int]:
    """End-of-sequence tokens by the generation config and by the tokenizer."""
    named = model.network.generation_config.eos_token_id
    ends = {model.tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    return {end for end in ends if end is not None}
