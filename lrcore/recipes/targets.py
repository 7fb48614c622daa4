"""Targets: software that runs compressed models, and the structures that it runs natively.

The plan of a recipe with a target has only ranks whose export needs no multiplied-out factors and
no padding with zeros. docs/serving.md has measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..system.errors import InputError

# Structures of slots below full rank
PAIRS = "low-rank pairs"
SPARSE = "pairs with a sparse term or factor"
QUANTIZED = "quantized pairs"
NARROWER_HEADS = "narrower heads"
FEWER_HEADS = "fewer heads"
NARROWER_MLPS = "narrower MLPs"
BIASED_MLPS = "narrower MLPs with added biases"
LATENT_KEYS = "cached latents of keys"
LATENT_VALUES = "cached latents of values"
BIASED_LATENTS = "cached latents with added biases"
STRUCTURES = (
    NARROWER_MLPS,
    BIASED_MLPS,
    FEWER_HEADS,
    NARROWER_HEADS,
    PAIRS,
    SPARSE,
    QUANTIZED,
    LATENT_VALUES,
    LATENT_KEYS,
    BIASED_LATENTS,
)


@dataclass(frozen=True)
class Target:
    """A row of the table of targets.

    native: structures that it runs. even: all layers must have the same sizes. uneven_families:
    the only model types whose layers may differ in size; empty for all. format: of `lrcore export`.
    standard: without custom code.
    """

    name: str
    about: str
    native: frozenset[str]
    even: bool = False
    uneven_families: frozenset[str] = frozenset()
    format: str = "transformers"
    standard: bool = False

    @property
    def takes_code(self) -> bool:
        """Whether the target runs folders with custom code, which all models can be exported to."""
        return self.format in ("transformers", "vllm") and not self.standard

    def is_even(self, family: str) -> bool:
        """Whether all layers of a model type must have the same sizes."""
        return self.even or bool(self.uneven_families and family not in self.uneven_families)

    @property
    def runs(self) -> str:
        """The native structures as text."""
        return _listed(self.native)


TARGETS: dict[str, Target] = {
    row.name: row
    for row in (
        Target("transformers", "with the code in the folder", frozenset(STRUCTURES)),
        Target(
            "transformers-stock",
            "transformers without any code",
            frozenset({NARROWER_MLPS, BIASED_MLPS}),
            even=True,
            standard=True,
        ),
        Target(
            "vllm",
            "vLLM by its backend for transformers",
            frozenset({PAIRS, QUANTIZED, NARROWER_MLPS, BIASED_MLPS}),
            format="vllm",
        ),
        Target(
            "llama.cpp",
            "a GGUF file",
            frozenset({NARROWER_MLPS, BIASED_MLPS, FEWER_HEADS}),
            uneven_families=frozenset({"llama", "mistral", "qwen2"}),
            format="gguf",
        ),
        Target(
            "mla",
            "latent attention that transformers has",
            frozenset({LATENT_VALUES, NARROWER_MLPS}),
            even=True,
            format="mla",
        ),
    )
}
DEFAULT = "transformers"
NAMES: Mapping[str, str] = {name: row.about for name, row in TARGETS.items()}


def not_native(target: Target, method: str, structures: set[str], fitting: list[str]) -> InputError:
    """Return the error for a method without structures that a target runs; fitting: methods with
    such structures.
    """
    return InputError(
        f"Target {target.name} runs {target.runs}, but method {method} with these options "
        f"makes {_listed(structures)}. Choose a method that fits ({', '.join(fitting)}), or omit "
        "the target; the export then reports its changes."
    )


def _listed(structures: set[str] | frozenset[str]) -> str:
    """Return structures as text, without those that another structure includes."""
    included = {BIASED_MLPS} if NARROWER_MLPS in structures else set()
    *first, last = [name for name in STRUCTURES if name in structures and name not in included]
    return f"{', '.join(first)} and {last}" if first else last
