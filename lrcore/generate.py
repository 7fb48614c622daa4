"""Text from a model, piece by piece. Closing the iterator stops the work at the next token."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .errors import InputError
from .models.load import LoadedModel

_REPLACEMENT = "\ufffd"  # what a tokenizer shows for bytes that are no whole character yet


def stream(
    model: LoadedModel,
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Yield the continuation of `prompt` as it is made.

    temperature 0 is greedy; above 0 it samples from the top_p nucleus, (0, 1], with a generator of
    its own: the same seed gives the same text whatever else runs. Ends after max_new_tokens, at an
    end-of-sequence token, or when the model's context is full.
    Raises InputError at once for an empty prompt, one that fills the context, or values out of
    range.
    """
    if not temperature >= 0:
        raise InputError(f"temperature must be 0 (greedy) or larger, got {temperature!r}.")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must lie in (0, 1], got {top_p!r}.")
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1, got {max_new_tokens!r}.")
    ids = _prompt_ids(model, prompt)
    room = (
        max_new_tokens if model.context is None else min(max_new_tokens, model.context - len(ids))
    )
    return _pieces(model, ids, room, temperature, top_p, seed)


def generate(
    model: LoadedModel,
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> str:
    """The continuation that `stream` yields, as one string, without the prompt."""
    return "".join(stream(model, prompt, max_new_tokens, temperature, top_p, seed))


class Decoder:
    """Tokens in, text out, so that the pieces joined are the text of all tokens decoded together.

    A character split over several tokens comes out whole, with the last of them; a token's leading
    space is kept because each token is decoded together with the ones before it.
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
        """What is left at the end: the marks of bytes that never became a character."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        before, now = (
            self._text(self._ids[self._start : self._read]),
            self._text(self._ids[self._start :]),
        )
        if now.endswith(_REPLACEMENT) and not final:
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _text(self, ids: list[int]) -> str:
        return (
            self._tokenizer.decode(
                ids, skip_special_tokens=self._skip, clean_up_tokenization_spaces=False
            )
            if ids
            else ""
        )


def _prompt_ids(model: LoadedModel, prompt: str) -> list[int]:
    """The prompt's tokens, with the special ones the tokenizer puts in front."""
    ids = model.tokenizer(prompt, verbose=False).input_ids if prompt else []
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
    model: LoadedModel, ids: list[int], room: int, temperature: float, top_p: float, seed: int
) -> Iterator[str]:
    generator = torch.Generator().manual_seed(seed)
    decoder, ends = Decoder(model.tokenizer, ids), _ends(model)
    fresh, cache = torch.tensor([ids], device=model.device), None
    for _ in range(room):
        logits, cache = _step(model, fresh, cache)
        token = _choose(logits, temperature, top_p, generator)
        if token in ends:
            break
        piece = decoder.add(token)
        if piece:
            yield piece
        fresh = torch.tensor([[token]], device=model.device)
    rest = decoder.rest()
    if rest:
        yield rest


@torch.inference_mode()
def _step(model: LoadedModel, fresh: Tensor, cache: object | None) -> tuple[Tensor, object]:
    """Logits [vocab], float32 on the CPU, after the fresh tokens [1, t], and the grown cache.

    Inference mode covers one step only: held across a `yield` it would leak into the caller.
    """
    out = model.network(input_ids=fresh, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return out.logits[0, -1].float().cpu(), out.past_key_values


def _choose(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    if not bool(torch.isfinite(logits.max())):
        raise InputError(
            "The model's output is not finite, so there is no next token. Try dtype float32, or a "
            "lower ratio."
        )
    if temperature == 0:
        return int(logits.argmax())
    shares, order = torch.softmax(logits.double() / temperature, 0).sort(
        descending=True, stable=True
    )
    kept = (
        shares.cumsum(0) - shares < top_p
    )  # the smallest set that reaches top_p; always the first
    return int(order[torch.multinomial(shares * kept, 1, generator=generator)])


def _ends(model: LoadedModel) -> set[int]:
    """End-of-sequence tokens by the generation config and by the tokenizer."""
    named = model.network.generation_config.eos_token_id
    ends = {model.tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    return {end for end in ends if end is not None}
