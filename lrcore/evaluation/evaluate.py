"""Perplexity by a named protocol, and the loss of every token.

A protocol cuts the text into rows of tokens and defines which of them are scored; by default,
non-overlapping full windows of T tokens that predict T - 1. The loss is computed in float32 from
the model's logits and summed in float64.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.tokens import encoded
from ..errors import InputError
from ..generate import Decoder
from ..image_tokens import highest_token, targets
from ..models.architectures import text_config
from ..models.cached import cached
from ..models.load import LoadedModel
from ..models.quantised_cache import GROUP, quantised_cache
from ..models.read_ahead import reading_ahead
from ..progress import Progress
from ..settings import check_least
from ..units import Work, each
from .protocols import Passages, Row, make_passages
from .settings import EvaluationSettings

# Logits of one forward pass; with a vocabulary of 128 k, 2048 tokens take 1 GB in float32.
_LOGIT_BYTES = 2**29
FIRST = 256  # positions of the first part of a window whose perplexity is told apart
_ROWS = 2**24  # float32 numbers per piece of the loss, 64 MB


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of a model by one protocol.

    nll: mean loss over `tokens` predicted tokens, nats/token; perplexity = exp(nll).
    nonfinite: windows in which a loss is NaN or infinite. With any of them nll and perplexity are
    NaN (null in `to_dict`), and nll_finite is the mean over the other windows (NaN without any).
    protocol: everything that the result depends on.
    bits_per_byte: of the UTF-8 text of the scored tokens; None where the tokenizer has no offsets.
    word_perplexity, byte_perplexity: only by protocols that count words.
    window_nll, window_tokens: mean loss of every window, nats/token, and its scored tokens, for
    differences between models on the same windows, see `delta_error`; no part of `to_dict`.
    by_position: of windows of 512 tokens and more, the perplexity of the tokens up to a position,
    from half of it on: {"256": ..., "512": ..., "1024": ...}, the first from the beginning, the
    last to the end of the window. None of shorter windows, and where a loss is not finite.
    """

    perplexity: float
    nll: float
    tokens: int
    windows: int
    nonfinite: int
    nll_finite: float
    seconds: float
    protocol: dict[str, Any]
    bits_per_byte: float | None = None
    word_perplexity: float | None = None
    byte_perplexity: float | None = None
    window_nll: tuple[float, ...] = field(default=(), repr=False)
    window_tokens: tuple[int, ...] = field(default=(), repr=False)
    by_position: dict[str, float] | None = None

    def delta_error(self, dense: "Evaluation") -> float:
        """Standard error of `nll` minus that of `dense` over windows, nats/token: of the
        differences, since both models read the same tokens; that of a ratio where windows differ in
        their tokens. Times the perplexity, it is that of the perplexity's difference. NaN for fewer
        than two windows, and where a loss is not finite. Raises InputError for other windows.
        """
        if self.window_tokens != dense.window_tokens:
            raise InputError(
                f"One model was measured on {len(self.window_tokens)} windows and the other on "
                f"{len(dense.window_tokens)}, or on windows of other lengths. Measure both with "
                "the same settings."
            )
        if len(self.window_nll) < 2:
            return math.nan
        own, other, tokens = (
            torch.tensor(one, dtype=torch.float64)
            for one in (self.window_nll, dense.window_nll, self.window_tokens)
        )
        change = tokens * (own - other)
        residual = change - tokens * (change.sum() / tokens.sum())
        spread = len(change) / (len(change) - 1) * residual.square().sum()
        return float(spread.sqrt() / tokens.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no NaN or infinity: those become None."""
        figures = asdict(self)
        del figures["window_nll"], figures["window_tokens"]
        if self.by_position is None:
            del figures["by_position"]
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in figures.items()
        }


def evaluate(
    model: LoadedModel,
    data: str | Sequence[Any] | EvaluationSettings,
    *,
    batch: int = 8,
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """Perplexity of `model` on the test split of `data` by a named protocol (`PROTOCOLS`).

    data: a data set, or whole `EvaluationSettings`. settings: single fields of it by name (samples,
    seq_len, sampling, seed, protocol, stride). batch: the most windows per forward pass.
    Raises InputError where the data set cannot be read or is too short, a setting is unknown or out
    of range, or seq_len exceeds the model's context.
    """
    began = time.perf_counter()
    check_least("batch", batch, 1)
    passages = make_passages(model, EvaluationSettings.of(data, settings))
    kv_bits = passages.protocol.get("kv_bits")
    rows = row_losses(model, passages.rows, batch, progress, kv_bits)
    losses = [part.double() for _, part in rows]
    return summarise(model, passages, losses, time.perf_counter() - began)


def check_evaluation(model: LoadedModel, settings: EvaluationSettings) -> None:
    """Raise InputError where `evaluate` would, before anything is run."""
    make_passages(model, settings)


def summarise(
    model: LoadedModel, passages: Passages, losses: list[Tensor], seconds: float
) -> Evaluation:
    """The evaluation from the losses of the scored tokens, [n, scored] per group, float64."""
    finite = [torch.isfinite(part).all(dim=1) for part in losses]
    kept = torch.cat([part[good].flatten() for part, good in zip(losses, finite, strict=True)])
    nonfinite = sum(int((~good).sum()) for good in finite)
    nll_finite = float(kept.mean()) if len(kept) else math.nan
    nll, tokens = (math.nan if nonfinite else nll_finite), sum(part.numel() for part in losses)

    def per(count: int | None) -> float | None:
        """Nats per byte or word of the text, of which there are `count`."""
        return nll * tokens / count if count else None

    per_byte, per_word = per(passages.bytes), per(passages.words)
    return Evaluation(
        perplexity=_exp(nll),
        nll=nll,
        tokens=tokens,
        windows=sum(len(part) for part in losses),
        nonfinite=nonfinite,
        nll_finite=nll_finite,
        seconds=seconds,
        protocol=passages.described(model) | measured_with(model),
        bits_per_byte=None if per_byte is None else per_byte / math.log(2),
        word_perplexity=None if per_word is None else _exp(per_word),
        byte_perplexity=None if per_word is None or per_byte is None else _exp(per_byte),
        window_nll=tuple(float(one) for part in losses for one in part.mean(1)),
        window_tokens=tuple(part.shape[1] for part in losses for _ in part),
        by_position=None if nonfinite or len(losses) > 1 else by_position(losses[0]),
    )


def by_position(losses: Tensor) -> dict[str, float] | None:
    """Perplexity of tokens by where they are, see `Evaluation`, of the losses [n, scored] of
    windows; None where they are shorter than 2 FIRST.
    """
    length = losses.shape[1] + 1
    if length < 2 * FIRST:
        return None
    ends = [FIRST]
    while 2 * ends[-1] <= length:
        ends.append(2 * ends[-1])
    ends[-1:] = [length] if length < 1.5 * ends[-1] else [ends[-1], length]
    starts = [1, *ends]  # nothing predicts the first token
    return {
        str(end): _exp(float(losses[:, start - 1 : end - 1].mean()))
        for start, end in zip(starts, ends, strict=False)
    }


def measured_with(model: LoadedModel) -> dict[str, str]:
    """What a protocol says of the model: dtype, device, and its note where it has one."""
    note = {"note": model.note} if model.note else {}
    return {"dtype": model.dtype, "device": str(model.device), **note}


def groups(rows: list[Row]) -> Iterator[tuple[Tensor, int]]:
    """Rows grouped by length and number of scored tokens: (tokens [n, t], scored), in order."""
    groups: dict[tuple[int, int], list[Tensor]] = {}
    for tokens, scored in rows:
        groups.setdefault((len(tokens), scored), []).append(tokens)
    for (_, scored), alike in groups.items():
        yield torch.stack(alike), scored


def row_losses(
    model: LoadedModel,
    rows: list[Row],
    batch: int = 8,
    progress: Progress | None = None,
    kv_bits: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The groups of `rows` with the losses of their scored tokens, ([n, t], [n, scored]).

    kv_bits: as of `window_losses`.
    """
    done = 0
    for tokens, scored in groups(rows):
        before = done

        def counted(stage: str, now: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(stage, before + now, len(rows))

        yield tokens, window_losses(model, tokens, batch, counted, kv_bits)[:, -scored:]
        done += len(tokens)


def window_losses(
    model: LoadedModel,
    tokens: Tensor,
    batch: int = 8,
    progress: Progress | None = None,
    kv_bits: int | None = None,
) -> Tensor:
    """Loss of every predicted token.

    tokens [n, T] -> [n, T - 1], float32 on the CPU; entry (i, t) is -log p(token t + 1 | 0..t).
    kv_bits: of a quantised cache through which the tokens pass, see `quantised_cache`.
    """
    parts = list(batches(model, tokens, batch))
    windows = [0, *accumulate(map(len, parts))]

    def counted(stage: str, done: int, _: int) -> None:
        if progress is not None and done:
            progress(stage, windows[done], len(tokens))

    with reading_ahead(model.network):
        return torch.cat(list(each(Work("evaluate", _Losses(model, kv_bits)), parts, counted)))


def batches(model: LoadedModel, tokens: Tensor, batch: int) -> Iterator[Tensor]:
    """Pieces [b, T] of tokens [n, T] on the model's device; b <= batch, less for large logits.

    Raises InputError where a token is outside the model's vocabulary.
    """
    model.check_tokens(highest_token(tokens))
    vocabulary = text_config(model.network).vocab_size
    per_window = tokens.shape[1] * vocabulary * model.network.dtype.itemsize
    for part in tokens.split(max(1, min(batch, _LOGIT_BYTES // per_window))):
        yield part.to(model.device)


@dataclass(frozen=True, eq=False)
class _Losses:
    """The task of `window_losses`: the losses of one forward pass."""

    model: LoadedModel
    kv_bits: int | None = None

    def __call__(self, tokens: Tensor, progress: Progress) -> Tensor:
        del progress
        return _losses(self.model, tokens, self.kv_bits)


@torch.inference_mode()
def _losses(model: LoadedModel, tokens: Tensor, kv_bits: int | None) -> Tensor:
    if kv_bits is None:
        logits = model.network(input_ids=tokens[:, :-1], use_cache=False).logits
    else:
        logits = _through_cache(model, tokens[:, :-1], kv_bits)
    logits = logits.flatten(0, 1)  # [b (T - 1), vocab]
    step = max(1, _ROWS // logits.shape[1])
    pieces = zip(logits.split(step), targets(tokens).flatten().split(step), strict=True)
    losses = torch.cat(
        [F.cross_entropy(piece.float(), target, reduction="none") for piece, target in pieces]
    )
    return losses.view(len(tokens), -1).cpu()


def _through_cache(model: LoadedModel, tokens: Tensor, kv_bits: int) -> Tensor:
    """Logits [b, t, vocab] of tokens that read those before them from a quantised cache, as if they
    came one by one.
    """
    cache = quantised_cache(kv_bits)
    parts = [cached(model.network, part, cache)[0].logits for part in tokens.split(GROUP, 1)]
    return torch.cat(parts, 1)


def token_losses(model: LoadedModel, text: str) -> list[tuple[str, float]]:
    """Every token of `text` with its loss in nats, (piece, -log p(token | tokens before)).

    The pieces joined are the text. No special tokens are added, so nothing predicts the first
    token: its loss is NaN. A character of several tokens belongs to the last of them; the others
    have an empty piece. Raises InputError where the text is empty or exceeds the context.
    """
    ids = encoded(model.tokenizer, text, add_special_tokens=False).input_ids
    if not ids:
        raise InputError("The text is empty: there is no token to score.")
    model.check_length(len(ids))
    losses = [math.nan]
    if len(ids) > 1:
        losses += window_losses(model, torch.tensor([ids]))[0].tolist()
    return list(zip(_pieces(model, ids), losses, strict=True))


def _pieces(model: LoadedModel, ids: list[int]) -> Iterator[str]:
    decoder = Decoder(model.tokenizer, [], skip_special=False)
    for token in ids[:-1]:
        yield decoder.add(token)
    yield decoder.add(ids[-1]) + decoder.rest()


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
