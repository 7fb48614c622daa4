"""Perplexity protocols by name, and the settings of an evaluation.

windows        full windows of any length, non-overlapping or at random positions, without special
               tokens
gptq-2048      as in GPTQ, SVD-LLM and A3: rows joined by a blank line, tokenized once with the
               special tokens of the tokenizer, non-overlapping windows of 2048 tokens, or of the
               context if it is shorter
gptq-4096      as gptq-2048 with windows of 4096 tokens, as in MoDeGPT. On WikiText-2, the dense
               Llama-2 7B has a perplexity of 5.12, compared to 5.47 for windows of 2048
gptq-2048-c4   as gptq-2048 for C4: the first 1100 documents joined by a space, the first 256
               windows (`get_c4_new`)
gptq-2048-ptb  as gptq-2048 for PTB: rows joined by a space (`get_ptb_new`)
strided        a window that moves by `stride` tokens: each token but the first is scored once, with
               at least length - stride previous tokens
lm-eval-word   rolling windows per document, as `loglikelihood_rolling` of lm-eval with a context of
               one token; perplexity per word and byte
assistant      answers of the assistant in conversations, each after the messages before it
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..system.cache import text_name
from ..system.errors import unknown
from ..system.settings import BOS, setting


@dataclass(frozen=True)
class Protocol:
    """A protocol. kind: how rows are cut. None: chosen by the data set or the caller."""

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
        Protocol("windows", "full windows of any length, no special tokens", "windows"),
        Protocol(
            "gptq-2048",
            "rows joined by a blank line, tokenized once, windows of 2048 (as for WikiText-2)",
            "blocks",
            2048,
            "\n\n",
        ),
        Protocol(
            "gptq-4096",
            "rows joined by a blank line, tokenized once, windows of 4096 (as in MoDeGPT)",
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
        Protocol("strided", "a window that moves by a stride; each token scored once", "strided"),
        Protocol(
            "lm-eval-word",
            "rolling windows per document, per word and byte, as in lm-eval",
            "documents",
        ),
        Protocol(
            "assistant",
            "answers of the assistant in conversations, each after the messages before it",
            "answers",
        ),
    )
}
DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of an evaluation.

    data: a data set, by name or file; "FILE:test" is the tail that is held out from calibration.
    samples: maximum number of windows (documents for lm-eval-word, conversations for assistant);
    None: all. seq_len: tokens per window; None: the length of the protocol, 256 for "windows" and
    "strided". sampling ("first" or "random") and seed: for "windows". protocol: a name in
    `PROTOCOLS`. stride: for "strided"; None: half of seq_len. kv_bits: 8, 4 or 2 bits of cached
    keys and values, see `quantized_cache`; None: not quantized. bos: beginning-of-text token at the
    start of windows, for "windows", see `Recipe`.
    """

    data: str = setting("stories", "Text to score: built-in name, file, or name:config:split.")
    samples: int | None = setting(None, "Number of windows (or documents). Default: all.", low=1)
    seq_len: int | None = setting(None, "Tokens per window. Default: set by the protocol.", low=2)
    sampling: str = setting("first", "Which windows: first or random.")
    seed: int = setting(0, "Seed of the random choice.", low=0)
    protocol: str = setting(
        "windows",
        "windows, gptq-2048, gptq-4096, gptq-2048-c4, gptq-2048-ptb, strided, lm-eval-word "
        "or assistant.",
    )
    stride: int | None = setting(None, "Stride of protocol strided. Default: half a window.", low=1)
    kv_bits: int | None = setting(
        None, "Bits of cached keys and values: 8, 4 or 2. Default: not quantized."
    )
    bos: str = setting(
        "never",
        "Beginning-of-text token at the start of each window of protocol windows: {choices}; auto: "
        "as the tokenizer does.",
        BOS,
    )

    @property
    def title(self) -> str:
        """The data set, and the bits of a quantized cache: "stories, KV 4 bit"."""
        return self.data if self.kv_bits is None else f"{self.data}, KV {self.kv_bits} bit"

    @classmethod
    def of(
        cls,
        data: "str | Sequence[Any] | EvaluationSettings",
        settings: Mapping[str, Any],
        **defaults: Any,
    ) -> "EvaluationSettings":
        """Return the settings for a data set, or `data` with some settings replaced.

        defaults: used for a data set if `settings` has no value. Raises InputError if a setting is
        unknown.
        """
        valid_names = {field.name for field in fields(cls)} - {"data"}
        for name in settings:
            if name not in valid_names:
                raise unknown("evaluation setting", name, valid_names)
        if isinstance(data, EvaluationSettings):
            return replace(data, **settings)
        return cls(text_name(data), **(defaults | dict(settings)))

    def held_out_from(self, calibrated: Iterable[str]) -> "EvaluationSettings":
        """Replace a file by its held-out tail if the file is one of the calibration data sets.

        Raises InputError for an unknown split of a file.
        """
        from ..data import file_and_split, held_out

        tail = held_out(self.data)
        is_calibrated = tail != self.data and tail in map(held_out, calibrated)
        return (
            replace(self, data=tail) if is_calibrated and not file_and_split(self.data)[1] else self
        )


@dataclass(frozen=True)
class TaskSettings:
    """A multiple-choice task, as a column of a sweep.

    task: "stories", "shapes" or "scienceqa" (with images), "needle-TOKENS", a .jsonl file or
    "lm-eval:NAME". items: number of items, from the first; None: all. shots: solved examples before
    each question.
    """

    task: str = setting(
        "stories", "stories, shapes, scienceqa, needle-TOKENS, a .jsonl file or lm-eval:NAME."
    )
    items: int | None = setting(None, "Number of items, from the first. Default: all.", low=1)
    shots: int = setting(0, "Solved examples before each question.", low=0)

    @property
    def title(self) -> str:
        """A short name: "task stories" or "task stories, 5 shots"."""
        shots = f", {self.shots} shot{'s' * (self.shots > 1)}"
        return f"task {self.task}{shots if self.shots else ''}"


def find_protocol(name: str) -> Protocol:
    """Return a protocol by name. Raises InputError with the nearest name if it is unknown."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
