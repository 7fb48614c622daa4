"""What makes a smaller model without ranks, among the points of the picture: layers dropped, the
residual stream sliced, bases shared, weights quantised or sparse, and LoRA after a compression.
"""

from collections.abc import Callable, Iterator
from typing import Any

import lrcore

from .page import RATIOS, ROOT, Subject, note

FOLDER = ROOT / "build" / "pareto"
_LORA = {
    "train": "lora",
    "lora_rank": 8,
    "beta": 0,
    "samples": 256,
    "seq_len": 128,
    "steps": 60,
    "test_samples": 0,
}
_EVERY = {"ratio": list(RATIOS)}
# Rows of a sweep, by the name of their series
ROWS: dict[str, Any] = {
    "shorten": {"shorten": {"layers": [1, 2, 3], "by": "loss"}},
    "slice": {"slice": _EVERY},
    "share": {"share": _EVERY},
    "quantise": {"quantise": {"bits": [8, 4, 3, 2]}},
    "sparsify 2:4": {"sparsify": {"criterion": ["sparsegpt", "wanda", "pruner_zero"]}},
    "a3 → lora": [{"compress": {"method": "a3", **_EVERY}}, {"heal": _LORA}],
    "svd_llm → lora": [{"compress": {"method": "svd_llm", **_EVERY}}, {"heal": _LORA}],
    "fused → quantise 4": [
        {"compress": {"method": "fused", "policy": "probed", **_EVERY}},
        {"quantise": {"bits": 4}},
    ],
}


def measured_by_steps(
    subject: Subject, record: dict[str, dict[str, Any]], dense: float, save: Callable[[], None]
) -> None:
    """Make what build/pareto lacks, and put the cells of every row into the record, by their names.
    dense: milliseconds per token of the dense model, which the ratios are multiplied by.
    """
    model = lrcore.load(subject.recipe.model)
    for series, row in ROWS.items():
        sweep = lrcore.Sweep(
            subject.recipe, evaluations=(subject.evaluation,), rows=[row], speed=True
        )
        rows = lrcore.run_sweep(model, sweep, FOLDER / subject.title / series)
        record.update(_cells(series, rows[1:], dense))
        note(f"{series}: {len(rows) - 1} models")
        save()


def _cells(
    series: str, rows: list[lrcore.SweepRow], dense: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and cell of every row that was made."""
    for row in rows:
        if row.perplexity is None or row.decode_speedup is None:
            continue
        cell = {
            "series": series,
            "perplexity": round(row.perplexity, 4),
            "parameters": row.parameters,
            "kv_bytes": row.kv_bytes_per_token,
            "megabytes": round(row.megabytes, 3),
            "milliseconds": round(dense / row.decode_speedup, 3),
        }
        if row.ratio is None:
            yield " ".join(part for part in (row.method, row.policy) if part), cell
        else:
            yield f"{series} {row.ratio:.0%}", cell
