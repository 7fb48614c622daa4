"""How text is sampled: `GenerationSettings`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .errors import InputError, shown
from .settings import setting


@dataclass(frozen=True)
class GenerationSettings:
    """Sampling settings, named and checked as in transformers' GenerationConfig.

    max_new_tokens >= 1. temperature >= 0; 0 is greedy. top_p in (0, 1]: the nucleus sampled from.
    seed: of a generator of its own, so the same seed gives the same text whatever else runs.
    Raises InputError where a value is out of range.
    """

    max_new_tokens: int = setting(64, "The most tokens to add.")
    temperature: float = setting(0.0, "0 is greedy.")
    top_p: float = setting(1.0, "Sample from the smallest set of tokens with this share.")
    seed: int = setting(0, "The same seed gives the same text, for every prompt and model.")

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "temperature", "top_p", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise InputError(f"{name} must be a number, got {shown(value)}. Type one.")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed = {shown(self.seed)}: give a whole number below 2^63.")
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
        """The settings with some fields replaced, the defaults where None is given."""
        return replace(settings or cls(), **fields)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as keyword arguments of `stream` and `generate`."""
        return asdict(self)
