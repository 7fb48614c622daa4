"""Perplexity by a named protocol, and the loss of single tokens.

A protocol cuts the text into rows of tokens and selects the scored tokens. The default protocol has
non-overlapping full windows of T tokens, with T - 1 scored tokens. The loss is computed in float32
from the logits and summed in float64.
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
from ..layers.image_tokens import highest_token, targets
from ..models.architectures import text_config
from ..models.kv_cache import GROUP, check_quantizable, forward_with_cache, quantized_cache
from ..models.load import LoadedModel
from ..models.read_ahead import reading_ahead
from ..system.errors import InputError
from ..system.progress import Progress
from ..system.settings import check_least
from ..system.units import Work, map_units
from .evaluation_settings import EvaluationSettings
from .generate import Decoder
from .protocols import Passages, Row, make_passages

# Bytes of logits per forward pass. Without a limit, 8 windows of 2048 tokens with a vocabulary of
# 128 k would take 8 GB in float32.
_LOGIT_BYTES = 2**29
FIRST = 256  # positions of the first part of a window in `Evaluation.by_position`
_ROWS = 2**24  # float32 numbers per chunk of the loss, 64 MB


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of a model by a protocol.

    nll: mean loss of `tokens` predicted tokens, nats/token; perplexity = exp(nll).
    nonfinite: number of windows with a NaN or infinite loss. If it is above 0, nll and perplexity
    are NaN (null in `to_dict`), and nll_finite is the mean over the finite windows (NaN if there
    are none). protocol: all settings and data that the result depends on.
    bits_per_byte: per byte of the UTF-8 text of the scored tokens; None for a tokenizer without
    offsets. word_perplexity, byte_perplexity: only for protocols that count words.
    window_nll, window_tokens: mean loss (nats/token) and number of scored tokens of each window,
    see `delta_error`; not in `to_dict`.
    by_position: perplexity of ranges of positions, by the last position of the range: {"256": ...,
    "512": ..., "1024": ...} for the positions 1 to 256, 257 to 512 and 513 to 1024. None for
    windows of fewer than 512 tokens, and if a loss is not finite.
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
        """Return the standard error of the difference in `nll`, nats/token.

        It is the error of paired differences over windows, because both models read the same
        tokens; for windows of different lengths, the error of a ratio estimate. Multiplied by the
        perplexity, it is the error of the difference in perplexity. NaN for fewer than two windows,
        and if a loss is not finite. Raises InputError if the windows differ.
        """
        if self.window_tokens != dense.window_tokens:
            raise InputError(
                f"The models were measured on different windows: {len(self.window_tokens)} and "
                f"{len(dense.window_tokens)} windows, or different lengths. Measure both models "
                "with the same settings."
            )
        if len(self.window_nll) < 2:
            return math.nan
        losses, dense_losses, tokens = (
            torch.tensor(values, dtype=torch.float64)
            for values in (self.window_nll, dense.window_nll, self.window_tokens)
        )
        change = tokens * (losses - dense_losses)
        residual = change - tokens * (change.sum() / tokens.sum())
        spread = len(change) / (len(change) - 1) * residual.square().sum()
        return float(spread.sqrt() / tokens.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; NaN and infinity become None."""
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
    """Return the perplexity of `model` on the test split of `data` by a protocol of `PROTOCOLS`.

    data: a data set, or `EvaluationSettings`. settings: single settings by name (samples, seq_len,
    sampling, seed, protocol, stride). batch: maximum number of windows per forward pass.
    Raises InputError if the data set cannot be read or is too short, a setting is unknown or out of
    range, or seq_len exceeds the context of the model.
    """
    start = time.perf_counter()
    check_least("batch", batch, 1)
    passages = make_passages(model, EvaluationSettings.of(data, settings))
    kv_bits = passages.protocol.get("kv_bits")
    rows = row_losses(model, passages.rows, batch, progress, kv_bits)
    losses = [part.double() for _, part in rows]
    return summarize(model, passages, losses, time.perf_counter() - start)


def check_evaluation(model: LoadedModel, settings: EvaluationSettings) -> None:
    """Raise the InputError of `evaluate` without running the model."""
    make_passages(model, settings)


def summarize(
    model: LoadedModel, passages: Passages, losses: list[Tensor], seconds: float
) -> Evaluation:
    """Return the evaluation for the losses of the scored tokens, [n, scored] per group, float64."""
    finite_windows = [torch.isfinite(part).all(dim=1) for part in losses]
    finite_losses = torch.cat(
        [part[is_finite].flatten() for part, is_finite in zip(losses, finite_windows, strict=True)]
    )
    nonfinite = sum(int((~is_finite).sum()) for is_finite in finite_windows)
    nll_finite = float(finite_losses.mean()) if len(finite_losses) else math.nan
    nll, tokens = (math.nan if nonfinite else nll_finite), sum(part.numel() for part in losses)

    def per(count: int | None) -> float | None:
        """Return nats per byte or per word; `count` is the number of bytes or words."""
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
        protocol=passages.protocol_for(model) | model_details(model),
        bits_per_byte=None if per_byte is None else per_byte / math.log(2),
        word_perplexity=None if per_word is None else _exp(per_word),
        byte_perplexity=None if per_word is None or per_byte is None else _exp(per_byte),
        window_nll=tuple(float(loss) for part in losses for loss in part.mean(1)),
        window_tokens=tuple(part.shape[1] for part in losses for _ in part),
        by_position=None if nonfinite else _by_position(passages, losses),
    )


def _by_position(passages: Passages, losses: list[Tensor]) -> dict[str, float] | None:
    """Return `perplexity_by_position` if all rows are windows whose tokens are all scored."""
    length = len(passages.rows[0][0])
    is_complete = len(losses) == 1 and losses[0].shape[1] == length - 1
    return perplexity_by_position(losses[0]) if is_complete else None


def perplexity_by_position(losses: Tensor) -> dict[str, float] | None:
    """Return the perplexity of ranges of positions, see `Evaluation.by_position`.

    losses: [n, scored], of full windows. Returns None for windows shorter than 2 FIRST.
    """
    length = losses.shape[1] + 1
    if length < 2 * FIRST:
        return None
    ends = [FIRST]
    while 2 * ends[-1] <= length:
        ends.append(2 * ends[-1])
    ends[-1:] = [length] if length < 1.5 * ends[-1] else [ends[-1], length]
    starts = [1, *ends]  # the first token is not predicted
    return {
        str(end): _exp(float(losses[:, start - 1 : end - 1].mean()))
        for start, end in zip(starts, ends, strict=False)
    }


def model_details(model: LoadedModel) -> dict[str, str]:
    """Return the entries of a protocol for the model: dtype, device and note, if any."""
    optional = {"note": model.note} if model.note else {}
    return {"dtype": model.dtype, "device": str(model.device), **optional}


def group_rows(rows: list[Row]) -> Iterator[tuple[Tensor, int]]:
    """Group rows by length and number of scored tokens: (tokens [n, t], scored), in order."""
    by_shape: dict[tuple[int, int], list[Tensor]] = {}
    for tokens, scored in rows:
        by_shape.setdefault((len(tokens), scored), []).append(tokens)
    for (_, scored), group in by_shape.items():
        yield torch.stack(group), scored


def row_losses(
    model: LoadedModel,
    rows: list[Row],
    batch: int = 8,
    progress: Progress | None = None,
    kv_bits: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the groups of `rows` with the losses of their scored tokens, ([n, t], [n, scored]).

    kv_bits: see `window_losses`.
    """
    done = 0
    for tokens, scored in group_rows(rows):
        first_row = done

        def report(stage: str, done_rows: int, _: int, first_row: int = first_row) -> None:
            if progress is not None:
                progress(stage, first_row + done_rows, len(rows))

        yield tokens, window_losses(model, tokens, batch, report, kv_bits)[:, -scored:]
        done += len(tokens)


def window_losses(
    model: LoadedModel,
    tokens: Tensor,
    batch: int = 8,
    progress: Progress | None = None,
    kv_bits: int | None = None,
) -> Tensor:
    """Return the losses of all predicted tokens.

    tokens [n, T] -> [n, T - 1], float32 on the CPU; entry (i, t) is -log p(token t + 1 | 0..t).
    kv_bits: bits of a quantized KV cache that the tokens pass through, see `quantized_cache`.
    Raises InputError like `check_quantizable`.
    """
    if kv_bits is not None:
        check_quantizable(model.size.state_bytes)
    parts = list(batches(model, tokens, batch))
    windows = [0, *accumulate(map(len, parts))]

    def report(stage: str, done: int, _: int) -> None:
        if progress is not None and done:
            progress(stage, windows[done], len(tokens))

    with reading_ahead(model.network):
        return torch.cat(list(map_units(Work("evaluate", _Losses(model, kv_bits)), parts, report)))


def batches(model: LoadedModel, tokens: Tensor, batch: int) -> Iterator[Tensor]:
    """Split tokens [n, T] into batches [b, T] on the device of the model.

    b is at most `batch`, and smaller if the logits would be too large. Raises InputError for a
    token outside the vocabulary of the model.
    """
    model.check_tokens(highest_token(tokens))
    vocabulary = text_config(model.network).vocab_size
    per_window = tokens.shape[1] * vocabulary * model.network.dtype.itemsize
    for part in tokens.split(max(1, min(batch, _LOGIT_BYTES // per_window))):
        yield part.to(model.device)


@dataclass(frozen=True, eq=False)
class _Losses:
    """The task of `window_losses` for `map_units`; a class, so that it can be pickled."""

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
    """Return the logits [b, t, vocab] of tokens that read previous tokens from a quantized cache,
    as in token-by-token decoding.
    """
    cache = quantized_cache(kv_bits)
    parts = [
        forward_with_cache(model.network, part, cache)[0].logits for part in tokens.split(GROUP, 1)
    ]
    return torch.cat(parts, 1)


def token_losses(model: LoadedModel, text: str) -> list[tuple[str, float]]:
    """Return the tokens of `text` with their losses in nats, (piece, -log p(token | prefix)).

    The joined pieces equal the text. No special tokens are added, so the first token is not
    predicted: its loss is NaN. A character of several tokens is the piece of the last token; the
    pieces of its previous tokens are empty. Raises InputError if the text is empty or exceeds the
    context.
    """
    ids = encoded(model.tokenizer, text, add_special_tokens=False).input_ids
    if not ids:
        raise InputError("The text is empty. Enter a text of at least one token.")
    model.check_length(len(ids))
    losses = [math.nan]
    if len(ids) > 1:
        losses += window_losses(model, torch.tensor([ids]))[0].tolist()
    return list(zip(_pieces(model, ids), losses, strict=True))


def _pieces(model: LoadedModel, ids: list[int]) -> Iterator[str]:
    decoder = Decoder(model.tokenizer, [], skip_special_tokens=False)
    for token in ids[:-1]:
        yield decoder.add(token)
    yield decoder.add(ids[-1]) + decoder.flush()


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
