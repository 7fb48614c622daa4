"""Targets: what will run a compressed model, and which structures it runs natively.

docs/serving.md says what was measured there. A recipe that names a target is given ranks whose
export needs nothing multiplied out or filled with zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import InputError

# What a slot is below full rank
PAIRS = "low-rank pairs"
SPARSE = "pairs with a sparse term"
QUANTISED = "quantised pairs"
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
    QUANTISED,
    LATENT_VALUES,
    LATENT_KEYS,
    BIASED_LATENTS,
)


@dataclass(frozen=True)
class Target:
    """A row of the table. native: the structures it runs. even: whether all layers must have the
    same sizes. format: of `lrcore export`; stock: as without code.
    """

    name: str
    about: str
    native: frozenset[str]
    even: bool = False
    format: str = "transformers"
    stock: bool = False

    @property
    def takes_code(self) -> bool:
        """Whether a folder with its code goes there, which any model can be."""
        return self.format in ("transformers", "vllm") and not self.stock

    @property
    def runs(self) -> str:
        """The structures in words."""
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
            stock=True,
        ),
        Target(
            "vllm",
            "vLLM by its backend for transformers",
            frozenset({PAIRS, QUANTISED, NARROWER_MLPS, BIASED_MLPS}),
            format="vllm",
        ),
        Target(
            "llama.cpp",
            "a GGUF file",
            frozenset({NARROWER_MLPS, BIASED_MLPS, FEWER_HEADS}),
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


def not_native(target: Target, method: str, structures: set[str], others: list[str]) -> InputError:
    """The error for a method that makes none of the structures that a target runs; others: the
    methods that do.
    """
    fit = ", ".join(others)
    return InputError(
        f"Target {target.name} runs {target.runs}; with these options method {method} "
        f"makes {_listed(structures)}. Methods that fit: {fit}. Or leave the target out: any "
        "export says what it has to change."
    )


def _listed(structures: set[str] | frozenset[str]) -> str:
    """Without those that are said by another one."""
    said = {BIASED_MLPS} if NARROWER_MLPS in structures else set()
    *first, last = [one for one in STRUCTURES if one in structures and one not in said]
    return f"{', '.join(first)} and {last}" if first else last
