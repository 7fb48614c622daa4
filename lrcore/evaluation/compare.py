"""Comparison of two models on the same tokens: losses, KL divergence and top-1 agreement."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layers.linalg import sum_float64
from ..models.architectures import text_config
from ..models.load import LoadedModel
from ..models.read_ahead import reading_ahead
from ..system.errors import InputError
from ..system.notebooks import frame, html_table
from ..system.progress import Progress
from .evaluate import _ROWS, Evaluation, batches, group_rows, summarize
from .evaluation_settings import EvaluationSettings
from .protocols import make_passages


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of two models on the same scored tokens.

    dense, small: evaluations of the two models. kl: mean of KL(dense || small) of the next-token
    distributions, nats/token, >= 0. top1: share of the tokens for which both models predict the
    same most likely token, in [0, 1]. kl and top1 are NaN if a prediction is not finite. delta:
    mean loss of small minus mean loss of dense, nats/token. losses: for each group of rows of equal
    length, the losses of dense and of small, [n, scored] each, float32.
    """

    dense: Evaluation
    small: Evaluation
    kl: float
    top1: float
    losses: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    @property
    def delta(self) -> float:
        return self.small.nll - self.dense.nll

    @property
    def delta_error(self) -> float:
        """Standard error of `delta` over windows, nats/token, of paired differences. NaN for fewer
        than two windows.
        """
        return self.small.delta_error(self.dense)

    def __repr__(self) -> str:
        return (
            f"Comparison(perplexity {self.dense.perplexity:.4g} -> {self.small.perplexity:.4g}, "
            f"KL {self.kl:.4g} nats/token, same top-1 {self.top1:.1%})"
        )

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks, one row per model."""
        rows = [
            {
                "model": name,
                "perplexity": evaluation.perplexity,
                "loss (nats/token)": evaluation.nll,
            }
            for name, evaluation in (("dense", self.dense), ("small", self.small))
        ]
        rows[1] |= {"KL (nats/token)": self.kl, "same top-1": self.top1}
        table = frame(rows).set_index("model").round(4)
        return html_table(f"{self.dense.tokens:,} tokens", table.astype(object).fillna(""))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; NaN and infinity become None."""
        figures = {name: getattr(self, name) for name in ("kl", "top1", "delta", "delta_error")}
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        return {"dense": self.dense.to_dict(), "small": self.small.to_dict()} | finite


def compare(
    dense: LoadedModel,
    small: LoadedModel,
    data: str | Sequence[Any] | EvaluationSettings,
    *,
    batch: int = 8,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Return loss, KL divergence and top-1 agreement of two models; arguments as in `evaluate`.

    Raises InputError like `evaluate`, and if the vocabularies of the models differ.
    """
    start = time.perf_counter()
    passages = make_passages(dense, EvaluationSettings.of(data, settings), small)
    check_tokens(dense, small, passages.rows)
    parts, done = [], 0
    with reading_ahead(dense.network, small.network):
        for tokens, scored in group_rows(passages.rows):
            for part in batches(dense, tokens, batch):
                parts.append(_compare_rows(dense, small, part, scored))
                done += len(part)
                if progress is not None:
                    progress("compare", done, len(passages.rows))
    seconds = time.perf_counter() - start
    evaluations = [
        summarize(model, passages, [part[i].double() for part in parts], seconds)
        for i, model in enumerate((dense, small))
    ]
    kl, agreement = (torch.cat([part[i].flatten() for part in parts]) for i in (2, 3))
    finite = bool(torch.isfinite(kl).all())
    return Comparison(
        dense=evaluations[0],
        small=evaluations[1],
        kl=float(kl.mean()) if finite else math.nan,
        top1=float(agreement.double().mean()) if finite else math.nan,
        losses=[(part[0], part[1]) for part in parts],
    )


def check_tokens(dense: LoadedModel, small: LoadedModel, rows: list[tuple[Tensor, int]]) -> None:
    """Check that both models can score the same rows (tokens [t], scored).

    Raises InputError if the vocabularies differ or a row exceeds the context of `small`.
    """
    sizes = {text_config(model.network).vocab_size for model in (dense, small)}
    if dense.tokenizer.get_vocab() != small.tokenizer.get_vocab() or len(sizes) > 1:
        raise InputError(
            f"'{dense.name}' and '{small.name}' have different vocabularies, so their predictions "
            "cannot be compared."
        )
    small.check_length(max(len(tokens) for tokens, _ in rows) - 1)


@torch.inference_mode()
def _compare_rows(
    dense: LoadedModel, small: LoadedModel, tokens: Tensor, scored: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both losses (float32), KL (float64) and agreement, [b, scored] each, on the CPU.

    tokens [b, t] on the device of `dense`.
    """
    targets = tokens[:, -scored:].flatten()
    logits = [
        _scored_logits(model, tokens.to(model.device), scored).to(dense.device)
        for model in (dense, small)
    ]  # [b * scored, vocab]
    step = max(1, _ROWS // logits[0].shape[1])
    columns = [
        _compare_logits(*piece)
        for piece in zip(*(t.split(step) for t in (*logits, targets)), strict=True)
    ]
    dense_loss, small_loss, kl, agreement = (
        torch.cat(parts).view(len(tokens), scored).cpu() for parts in zip(*columns, strict=True)
    )
    return dense_loss, small_loss, kl, agreement


def _scored_logits(model: LoadedModel, tokens: Tensor, scored: int) -> Tensor:
    output = model.network(input_ids=tokens[:, :-1], use_cache=False)
    logits: Tensor = output.logits[:, -scored:]
    return logits.flatten(0, 1)


def _compare_logits(
    dense: Tensor, small: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both losses, KL and agreement, [n] each, for logits [n, vocab] and targets [n]."""
    p, q = (F.log_softmax(logits.float(), dim=-1) for logits in (dense, small))
    kl = sum_float64(p.exp() * (p - q), -1)
    return (
        F.nll_loss(p, targets, reduction="none"),
        F.nll_loss(q, targets, reduction="none"),
        kl,
        p.argmax(-1) == q.argmax(-1),
    )
