"""Perplexity protocols by name, and the settings of one evaluation.

windows        non-overlapping (or randomly placed) full windows of the caller's length, without
               special tokens
gptq-2048      GPTQ's script, also SVD-LLM's and A3's: rows joined by a blank line, tokenised once
               with the tokenizer's special tokens, non-overlapping windows of 2048, or of the
               context where that is shorter
gptq-4096      the same in windows of 4096: MoDeGPT's figures, whose dense Llama-2 7B has 5.12 on
               WikiText-2 (in windows of 2048 it has 5.47)
gptq-2048-c4   the same for C4: the first 1100 documents joined by a space, the first 256 windows
               (`get_c4_new`)
gptq-2048-ptb  the same for PTB: rows joined by a space (`get_ptb_new`)
strided        a window that moves by `stride`: every token but the first is scored once, with at
               least length - stride tokens before it
lm-eval-word   per document, rolling, as lm-eval's `loglikelihood_rolling` with a context of one
               token; perplexity per word and byte
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import unknown
from ..settings import setting
from ..texts import named


@dataclass(frozen=True)
class Protocol:
    """A protocol. kind: how rows are cut. None: decided by the data set or the caller."""

    name: str
    summary: str
    kind: str
    seq_len: int | None = None
    join: str | None = None
    documents: int | None = None
    windows: int | None = None


PROTOCOLS: Mapping[str, Protocol] = {
    row.name: row
    for row in (
        Protocol(
            "windows", "full windows of a length of your choice, no special tokens", "windows"
        ),
        Protocol(
            "gptq-2048",
            "rows joined by a blank line, tokenised once, windows of 2048 (as for WikiText-2)",
            "blocks",
            2048,
            "\n\n",
        ),
        Protocol(
            "gptq-4096",
            "rows joined by a blank line, tokenised once, windows of 4096 (as MoDeGPT's)",
            "blocks",
            4096,
            "\n\n",
        ),
        Protocol(
            "gptq-2048-c4",
            "first 1100 documents joined by a space, first 256 windows of 2048",
            "blocks",
            2048,
            " ",
            1100,
            256,
        ),
        Protocol("gptq-2048-ptb", "rows joined by a space, windows of 2048", "blocks", 2048, " "),
        Protocol("strided", "a window that moves by a stride; every token scored once", "strided"),
        Protocol(
            "lm-eval-word",
            "per document, rolling, per word and byte, as lm-eval defines it",
            "documents",
        ),
    )
}
DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of one evaluation.

    data: a data set, by name or file; "FILE:test" is the tail that calibration leaves out. samples:
    the most windows (documents, for a protocol on documents); None: all. seq_len: tokens per
    window; None: the protocol's own, 256 for "windows" and "strided". sampling ("first" or
    "random") and seed: of "windows". protocol: a name in `PROTOCOLS`. stride: of "strided"; None:
    half of seq_len. kv_bits: 8, 4 or 2 bits of cached keys and values, see `quantised_cache`; None:
    as they are.
    """

    data: str = setting("stories", "Text to score: built-in name, file, or name:config:split.")
    samples: int | None = setting(None, "Number of windows (or documents). Default: all.", low=1)
    seq_len: int | None = setting(None, "Tokens per window. Default: the protocol's.", low=2)
    sampling: str = setting("first", "Which windows: first or random.")
    seed: int = setting(0, "Seed of the random choice.", low=0)
    protocol: str = setting(
        "windows",
        "windows, gptq-2048, gptq-4096, gptq-2048-c4, gptq-2048-ptb, strided or lm-eval-word.",
    )
    stride: int | None = setting(None, "Of protocol strided. Default: half a window.", low=1)
    kv_bits: int | None = setting(
        None, "Bits of cached keys and values: 8, 4 or 2. Default: as they are."
    )

    @property
    def title(self) -> str:
        """The data set, and the bits of the cache where it is quantised: "stories, KV 4 bit"."""
        return self.data if self.kv_bits is None else f"{self.data}, KV {self.kv_bits} bit"

    @classmethod
    def of(
        cls,
        data: "str | Sequence[Any] | EvaluationSettings",
        settings: Mapping[str, Any],
        **defaults: Any,
    ) -> "EvaluationSettings":
        """A data set and the other settings by name, or whole settings with some replaced.

        defaults: for a data set, where `settings` has no value. Raises InputError where a setting
        is unknown.
        """
        known = {field.name for field in fields(cls)} - {"data"}
        for name in settings:
            if name not in known:
                raise unknown("evaluation setting", name, known)
        if isinstance(data, EvaluationSettings):
            return replace(data, **settings)
        return cls(named(data), **(defaults | dict(settings)))

    def apart_from(self, calibrated: Iterable[str]) -> "EvaluationSettings":
        """The settings with the held-out tail of a file in its place, where one of these data sets,
        by name, is the same file. Raises InputError for an unknown split of a file.
        """
        from ..data import file_and_split, held_out

        tail = held_out(self.data)
        same = tail != self.data and tail in map(held_out, calibrated)
        return replace(self, data=tail) if same and not file_and_split(self.data)[1] else self


@dataclass(frozen=True)
class TaskSettings:
    """A task of multiple choice, as a column of a sweep.

    task: "stories", "shapes" or "scienceqa" (with images), "needle-TOKENS", a .jsonl file or
    "lm-eval:NAME". items: the first so many; None: all. shots: solved examples before every
    question.
    """

    task: str = setting(
        "stories", "stories, shapes, scienceqa, needle-TOKENS, a .jsonl file or lm-eval:NAME."
    )
    items: int | None = setting(None, "The first so many items. Default: all.", low=1)
    shots: int = setting(0, "Solved examples before every question.", low=0)

    @property
    def title(self) -> str:
        """In a few words: "task stories" or "task stories, 5 shots"."""
        shots = f", {self.shots} shot{'s' * (self.shots > 1)}"
        return f"task {self.task}{shots if self.shots else ''}"


def find_protocol(name: str) -> Protocol:
    """The protocol of a name. Raises InputError, with the nearest name, where it is unknown."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
