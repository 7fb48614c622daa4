"""Settings of text generation."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..system.errors import InputError, shown
from ..system.settings import setting


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of sampling, with the names of transformers' GenerationConfig.

    max_new_tokens: >= 1. temperature: >= 0; 0 is greedy. top_p: in (0, 1], probability of the
    nucleus. seed: of a separate random generator, so the same seed gives the same text. Raises
    InputError for a value out of range.
    """

    max_new_tokens: int = setting(64, "Maximum number of new tokens.")
    temperature: float = setting(0.0, "0: greedy decoding.")
    top_p: float = setting(1.0, "Sample from the most probable tokens with this total probability.")
    seed: int = setting(0, "Seed of sampling, used for each prompt and model.")

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "temperature", "top_p", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise InputError(f"{name} must be a number, got {shown(value)}. Enter a number.")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number below 2^63, got {shown(self.seed)}.")
        if not 0 <= self.temperature < math.inf:
            raise InputError(
                f"temperature must be 0 (greedy) or a larger number, got {self.temperature!r}."
            )
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must lie in (0, 1], got {self.top_p!r}.")
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be at least 1, got {self.max_new_tokens!r}.")

    @classmethod
    def of(
        cls, settings: "GenerationSettings | None", fields: Mapping[str, Any]
    ) -> "GenerationSettings":
        """Return the settings, by default the default ones, with some fields replaced."""
        return replace(settings or cls(), **fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, as keyword arguments of `stream` and `generate`."""
        return asdict(self)
