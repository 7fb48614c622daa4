"""Perplexity by the protocol of GPTQ and SVD-LLM, and the loss of every token.

The texts of a data set are joined with a blank line, tokenised once without special tokens, and cut into non-overlapping full
windows; each window of T tokens predicts T - 1. The loss is taken in float32 from the model's logits and summed in float64.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .data import load_texts, make_windows
from .errors import InputError
from .generate import Decoder
from .models.load import LoadedModel

Progress = Callable[[str, int, int], None]

_LOGIT_BYTES = 2**29  # logits of one forward pass; a vocabulary of 128 k at 2048 tokens takes 1 GB per window in float32
_ROWS = 2**24  # float32 numbers per piece of the loss, 64 MB


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    nll: mean over `tokens` predicted tokens, in nats; perplexity = exp(nll). nonfinite: windows in which a loss is NaN or infinite.
    They are never dropped: where there is one, nll and perplexity are NaN (null in `to_dict`), and nll_finite alone is the mean
    over the other windows (NaN where there is none). protocol: all that the figure depends on.
    """

    perplexity: float
    nll: float
    tokens: int
    windows: int
    nonfinite: int
    nll_finite: float
    seconds: float
    protocol: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no NaN or infinity: those become None."""
        return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in asdict(self).items()}


def evaluate(
    model: LoadedModel,
    data: str,
    samples: int | None = None,
    seq_len: int = 256,
    sampling: str = "first",
    seed: int = 0,
    batch: int = 8,
    progress: Progress | None = None,
) -> Evaluation:
    """Perplexity of `model` on the test split of `data`: the first (or a seeded random choice of) `samples` windows; None: all.

    Raises InputError where the data set cannot be read, is shorter than one window, or seq_len exceeds the model's context.
    """
    model.check_length(seq_len)
    began = time.perf_counter()
    windows = make_windows(load_texts(data, role="test"), model.tokenizer, samples, seq_len, sampling, seed)
    losses = window_losses(model, windows.tokens, batch, progress).double()  # [n, T - 1]
    finite = torch.isfinite(losses).all(dim=1)
    nll_finite = float(losses[finite].mean()) if bool(finite.any()) else math.nan
    nll = nll_finite if bool(finite.all()) else math.nan
    return Evaluation(
        perplexity=_exp(nll),
        nll=nll,
        tokens=losses.numel(),
        windows=len(losses),
        nonfinite=int((~finite).sum()),
        nll_finite=nll_finite,
        seconds=time.perf_counter() - began,
        protocol=windows.protocol
        | {"windows": len(losses), "tokens": windows.tokens.numel(), "dtype": model.dtype, "device": str(model.device)},
    )


def window_losses(model: LoadedModel, tokens: Tensor, batch: int = 8, progress: Progress | None = None) -> Tensor:
    """Loss of every predicted token. tokens [n, T] -> [n, T - 1], float32 on the CPU; entry (i, t) is -log p(token t + 1 | 0..t)."""
    model.check_tokens(int(tokens.max()))
    per_window = tokens.shape[1] * model.network.config.vocab_size * model.network.dtype.itemsize
    done, parts = 0, []
    for part in tokens.split(max(1, min(batch, _LOGIT_BYTES // per_window))):
        parts.append(_losses(model, part.to(model.device)))
        done += len(part)
        if progress is not None:
            progress("evaluate", done, len(tokens))
    return torch.cat(parts)


@torch.inference_mode()
def _losses(model: LoadedModel, tokens: Tensor) -> Tensor:
    logits = model.network(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1)  # [b (T - 1), vocab]
    targets = tokens[:, 1:].flatten()
    step = max(1, _ROWS // logits.shape[1])
    pieces = zip(logits.split(step), targets.split(step), strict=True)
    losses = torch.cat([F.cross_entropy(piece.float(), target, reduction="none") for piece, target in pieces])
    return losses.view(len(tokens), -1).cpu()


def token_losses(model: LoadedModel, text: str) -> list[tuple[str, float]]:
    """Every token of `text` with its loss in nats: (piece, -log p(token | those before)); the pieces joined give the text back.

    No special tokens are added, so nothing predicts the first token: its loss is NaN. A character spread over several tokens
    stands with the last of them; the others have an empty piece. Raises InputError for an empty text or one beyond the context.
    """
    ids = model.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
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
