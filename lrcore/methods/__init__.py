"""The methods, one row each.

A method is a pure function from one layer and its moments to factors that serve every rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import unknown
from ..layer import Layer
from ..options import Option, read_rows
from ..statistics import Need
from . import a3, care, fused, latentllm, modegpt, svd, svd_llm
from .factors import Factors, spectrum

COMPONENTS = ("qk", "ov", "mlp")
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
HELD = {
    "qk": ("q", "k"),
    "ov": ("v", "o"),
    "mlp": ("gate", "up", "down"),
    "kv": ("k", "v"),
    "joint_qk": ("q", "k"),
    "joint_vo": ("v", "o"),
    "joint_ud": ("up", "down"),
    "joint_qkv": ("q", "k", "v"),
}
CASES = ("mha", "gqa", "rotary", "no_rotary", "biases", "gated_mlp", "plain_mlp", "sequential")

__all__ = [
    "COMPONENTS",
    "MATRICES",
    "METHODS",
    "Factors",
    "Method",
    "find_method",
    "matrices_of",
    "spectrum",
    "truncate",
]


@dataclass(frozen=True)
class Method:
    """A row of the table.

    needs: the (tap, statistic) pairs that `factor` reads. components: the slots it solves per
    layer.

    refit: whether layers make up for what those before them lost unless the recipe says otherwise
    (see lrcore/compression/refit.py). options: what `factor` takes besides layer and moments, as
    keywords with the same defaults.
    gradients: the (option, value) pairs under which `factor` also reads statistics of gradients,
    see lrcore/calibration/gradients.py. extra_needs: what else a choice (option, value) reads;
    collected only where somebody chose it.
    lacks: those of CASES that `factor` refuses with InputError; a test holds every row to what it
    says.
    """

    name: str
    paper: str
    components: tuple[str, ...]
    needs: frozenset[Need]
    factor: Callable[..., Factors]
    shrinks_kv: bool
    notes: str
    options: tuple[Option, ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    refit: bool = False
    lacks: frozenset[str] = frozenset()
    extra_needs: Mapping[tuple[str, Any], frozenset[Need]] = field(default_factory=dict)

    def reads(self, options: Mapping[str, Any]) -> frozenset[Need]:
        """What `factor` reads with these options: its needs, and what single choices ask for
        besides.
        """
        return self.needs.union(
            *(
                needs
                for (name, value), needs in self.extra_needs.items()
                if options.get(name) == value
            )
        )

    def budget(self, asked: str) -> str:
        """What a ratio counts: as asked; for "auto" what this method shrinks: "params", or "kv"
        where it only factors keys and values.
        """
        return (
            asked if asked != "auto" else "kv" if set(self.components) <= {"k", "v"} else "params"
        )

    def choose(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every option's value. Raises InputError for an unknown name or a value out of range."""
        return read_rows(f"method {self.name}", self.options, given)

    def reads_gradients(self, chosen: Mapping[str, Any]) -> bool:
        """Whether `factor` reads statistics of gradients with these options, every one of which
        has a value.
        """
        return any(chosen[option] == value for option, value in self.gradients)

    def describe(self) -> dict:
        """The row as plain values, for `methods --json` and the page."""
        supports = {case: case not in self.lacks for case in CASES} | {"kv_budget": self.shrinks_kv}
        options = [option.describe() for option in self.options]
        return {
            "name": self.name,
            "paper": self.paper,
            "components": list(self.components),
            "supports": supports,
            "notes": self.notes,
            "options": options,
            "refit": self.refit,
        }


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method(
            "svd",
            "Eckart and Young 1936",
            MATRICES,
            svd.NEEDS,
            svd.factor,
            False,
            "Every matrix on its own, blind to the data. Biases stay as they are. weights=fisher "
            "is FWSVD: inputs weighed by the squared "
            "gradients of the loss, from one backward pass per calibration window (64 at most).",
            options=svd.OPTIONS,
            gradients=(("weights", "fisher"),),
        ),
        Method(
            "svd_llm",
            "SVD-LLM (Wang et al., ICLR 2025)",
            MATRICES,
            svd_llm.NEEDS,
            svd_llm.factor,
            False,
            "Every matrix on its own, whitened by its input. Biases stay as they are; with "
            "calibration 'sequential' each layer is whitened "
            "by the inputs that the compressed layers before it give.",
        ),
        Method(
            "a3",
            "A3: an Analytical Low-Rank Approximation Framework for Attention",
            COMPONENTS,
            a3.NEEDS,
            a3.factor,
            True,
            "QK: SVD without rotary (joint over a GQA group), whole rotary pairs by CUR with it. "
            "OV: per head (MHA), joint (GQA). "
            "MLP: CUR on neurons. Biases enter the moments and are mapped with the weights. Rules "
            "for what the paper leaves open: GQA with "
            "rotary scores a pair by the sum over the heads that share its key; pairs are (j, j + "
            "d_h / 2), as checkpoints store them; "
            "OV has one rule with and without rotary; ov=overall with GQA gives each query head "
            "values of its own.",
            options=a3.OPTIONS,
            gradients=(("mlp", "taylor"),),
        ),
        Method(
            "modegpt",
            "MoDeGPT: Modular Decomposition for Large Language Model Compression (Lin et al., "
            "ICLR 2025)",
            COMPONENTS,
            modegpt.NEEDS,
            modegpt.factor,
            True,
            "QK: CR on post-rotary correlations, whole pairs with rotary. VO: two-stage SVD "
            "(MHA), principal directions of the value "
            "state (GQA). MLP: Nystrom on ridge leverage. Biases enter the moments. Rules for "
            "what the paper leaves open: GQA without "
            "rotary scores single columns by the same sum over the group as with it; selected "
            "biases go along, and the output and down "
            "biases stay as they are; Propositions 1 to 3 bound the error (--bounds), for VO "
            "under GQA by the values' tail.",
        ),
        Method(
            "latentllm",
            "LatentLLM: Attention-Aware Joint Tensor Compression (Koike-Akino et al., 2025)",
            ("joint_qk", "v", "o", "joint_ud", "gate", "up", "down"),
            latentllm.NEEDS,
            latentllm.factor,
            False,
            "Every projection becomes B A. Q and K have one A each for all heads (HOSVD, summed "
            "over rotary offsets where there are any), "
            "and are on their own where they are normalised; v and o are on their own. The MLP's "
            "are on their own; mlp=joint solves up "
            "and down of a ReLU MLP together, in some seconds per layer. A block identity saves "
            "r^2 numbers, and "
            "d_h^2 per key head without rotary; the KV cache stays as it is. Means go into the "
            "biases there are; without one the moments "
            "are not centred, or option bias=add gives one. With attention=joint_qkv both block "
            "identities lie in the A that q, k and v "
            "share, and vo is not read. vo=attention measures what heads attend to, up to 4096 "
            "numbers per token. With split_head the "
            "ranks are per head, and o is factored whole. sparse adds a sparse term to matrices "
            "on their own (and takes the MLP apart); "
            "bits stores factors as codes, which a ratio does not count.",
            latentllm.OPTIONS,
            extra_needs=latentllm.EXTRA_NEEDS,
        ),
        Method(
            "care",
            "CARE: Covariance-Aware and Rank-Enhanced Decomposition for Enabling Multi-Head "
            "Latent Attention (ICLR 2026)",
            ("k", "v"),
            care.NEEDS,
            care.factor,
            True,
            "Keys and values of all heads become one low-rank latent each, and the cache holds "
            "the latents alone; queries, output and MLP "
            "stay. Its ratios are shares of the cache. Policy uniform is CARE-U, waterfill CARE-E. "
            "group gives every few heads a latent of their own (Palu).",
            care.OPTIONS,
        ),
        Method(
            "fused",
            "ours",
            COMPONENTS,
            fused.NEEDS,
            fused.factor,
            True,
            "QK: centred keys without rotary, whole pairs with it. OV: map on the head outputs, "
            "output projection refit across heads. "
            "MLP: elimination of neurons with exact refit. Means go into the biases; projections "
            "without one get one. Unless the "
            "recipe says 'refit: off', each layer is then refit, on what the compressed layers "
            "before it give, towards the dense stream.",
            refit=True,
        ),
    )
}


def find_method(name: str) -> Method:
    """The row of a method. Raises InputError with the nearest name for an unknown one."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def matrices_of(slot: str) -> tuple[str, ...]:
    """The matrices whose weights a slot of any method holds, by its name; an MLP may lack the
    gate.
    """
    return HELD.get(slot, (slot,))


def truncate(layer: Layer, factors: Factors, ranks: Mapping[str, int]) -> Layer:
    """The layer with every slot in `ranks` cut to its rank.

    Slots do not touch each other's tensors, so their order is free.
    """
    for name, rank in ranks.items():
        layer = factors[name].truncate(layer, rank)
    return layer
