"""LatentLLM: Attention-Aware Joint Tensor Compression.

Each projection becomes `B A`; the shapes of heads and of the KV cache are unchanged.

* Preconditioners and junctions: `junction.py`.
* A matrix, a head, or q, k and v over a shared A: `local.py`.
* Joint QK and joint VO by alternating SVD: `hosvd.py`, `subspace.py`, `joint.py`.
* Joint VO by the output of the attention: `attention_solver.py`, `joint_attention.py`. It reads
  moments that the common calibration does not collect.
* Joint UD of a ReLU MLP: `mlp.py`.
* A sparse term in addition to B A, for separate matrices: `sparse.py`.
* Factors as quantized weights: `quantized.py`.

Means: the metric of a projection with a bias is the covariance, and `b^ = b + (W - B A) mu`
(appendix B.2). For a projection without a bias, the option `bias` decides: "update" adds no bias
and takes the uncentered moment, which is then the optimum; "add" adds a bias. Normalized queries
and keys are factorized separately, as are the matrices of an MLP that is gated or has an activation
other than ReLU, for which the paper has no closed form.
"""

from dataclasses import dataclass

from torch import Tensor

from ...layers.layer import Layer, LowRank
from ...layers.statistics import COMMON_TAPS, TAPS, Moments
from ...system.settings import option
from ..expert_factors import EachExpert
from ..factors import Factor, LayerFactors
from ..method import Method
from .joint import joint_qk, joint_vo
from .joint_attention import attention_aware_vo
from .junction import JUNCTIONS, PRECONDITIONERS, squared_metric
from .local import StackedMatrices, split_heads, stacked
from .mlp import joint_ud
from .quantized import quantized
from .sparse import plus_sparse

NEEDS = frozenset(
    (tap, statistic) for tap in COMMON_TAPS for statistic in ("second", "mean", "abs")
) | {("mlp_in", "sample")}
EXTRA_NEEDS = {
    ("vo", "attention"): frozenset({("weighted_values", "second"), ("weighted_values", "mean")})
}

ATTENTION = ("joint_qk", "local", "split_head", "joint_qkv")


@dataclass(frozen=True)
class LatentLLMOptions:
    preconditioner: str = option(
        "root_covariance",
        "metric of the input (table 1)",
        choices=PRECONDITIONERS,
    )
    exponent: float = option(
        1.0,
        "power of E|x| in diag_l1",
        low=0.0,
        high=4.0,
    )
    damping: float = option(
        0.0,
        "fraction of the mean diagonal that is added to the second moment",
        low=0.0,
        high=10.0,
    )
    junction: str = option(
        "right_identity",
        "side that takes the scale, or side whose identity block is not stored",
        choices=JUNCTIONS,
    )
    bias: str = option(
        "update",
        "update: means move into existing biases; add: also into added biases; keep: biases are "
        "unchanged",
        choices=("update", "add", "keep"),
    )
    attention: str = option(
        "joint_qk",
        "matrices that are factorized jointly",
        choices=ATTENTION,
    )
    vo: str = option(
        "split",
        "split: v and o separately; jointly for all heads: joint by the input of the layer, "
        "attention by the attention-weighted values (not with joint_qkv)",
        choices=("split", "joint", "attention"),
    )
    mlp: str = option(
        "local",
        "local: up and down separately; joint: jointly, for a plain ReLU MLP",
        choices=("local", "joint"),
    )
    window: int = option(
        5,
        "rotary offsets that joint_qk sums over; 0 ignores the rotation",
        low=0,
        high=64,
    )
    sparse: float = option(
        0.0,
        "fraction of the entries of a separately factorized matrix in a sparse term",
        low=0.0,
        high=0.4,
    )
    bits: int = option(
        0,
        "bits of quantized factors; 0: not quantized",
        low=0,
        high=8,
    )
    chunk: int = option(
        64,
        "number of weights with a common scale and zero point",
        low=8,
        high=65536,
    )


DEFAULT = LatentLLMOptions()


@dataclass(frozen=True, eq=False)
class Problem:
    """A layer with its moments and the options; its methods solve one or more projections."""

    layer: Layer
    moments: Moments
    options: LatentLLMOptions

    def metric(self, tap: str, centered: bool) -> tuple[Tensor | None, Tensor | None]:
        """Return P^2 of a tap [in, in], None for the identity, and its mean [in] if the metric is
        centered, else None.
        """
        o, moments = self.options, self.moments
        second = moments.centered(tap) if centered else moments.second(tap)
        squared = squared_metric(
            o.preconditioner, second, moments.values[tap, "abs"], o.exponent, o.damping
        )
        return squared, moments.mean(tap) if centered else None

    def metric_of(self, *names: str) -> tuple[Tensor | None, Tensor | None]:
        """Return P^2 [in, in] of the input that the named projections share, and its mean [in] if
        it moves into their biases, else None.
        """
        matrices, bias = self.layer.matrices(), self.options.bias
        have_biases = all(matrices[name].bias is not None for name in names)
        can_have_biases = all(self.layer.can_have_bias(name) for name in names)
        centered = {"add": can_have_biases, "update": have_biases, "keep": False}[bias]
        return self.metric(TAPS[names[0]], centered)

    def stacked(self, *names: str) -> StackedMatrices:
        """Return the factor of the named projections over a shared A."""
        return stacked(self.layer, names, *self.metric_of(*names), self.options.junction)

    def by_head(self, name: str, count: int) -> Factor:
        """Return the factor of a projection with a separate A for each head."""
        squared, mean = self.metric_of(name)
        return split_heads(self.layer, name, count, squared, mean, self.options.junction)

    def single(self, name: str) -> Factor:
        """Return the factor of a single projection, with a sparse term if the options
        require one.
        """
        squared, mean = self.metric_of(name)
        low_rank = stacked(self.layer, (name,), squared, mean, self.options.junction)
        sparse = self.options.sparse
        return plus_sparse(self.layer, low_rank, squared, sparse) if sparse else low_rank


def factor(layer: Layer, moments: Moments, options: LatentLLMOptions = DEFAULT) -> LayerFactors:
    """Return the factors of all slots of a layer for all ranks.

    Alternating solutions depend on the rank, so their rounds run in `truncate`; those of joint QK
    and VO need only matrix products (`subspace.py`).
    """
    problem = Problem(layer, moments, options)
    layer_factors = mlp_matrices(problem)
    if layer.expert is None:
        layer_factors = queries_and_keys(problem) | values_and_output(problem) | layer_factors
    if not options.bits:
        return layer_factors
    bits, chunk = options.bits, options.chunk
    return {name: quantized(solved, bits, chunk) for name, solved in layer_factors.items()}


def queries_and_keys(p: Problem) -> LayerFactors:
    """Return slots q and k, or joint_qk, or joint_qkv; of native attention, all its matrices."""
    a, attention = p.layer.attention, p.options.attention
    if a.factors is not None:  # latents of the family, with norms between the factors
        return {name: p.single(name) for name in a.factors}
    if attention == "joint_qkv":
        return {"joint_qkv": p.stacked("q", "k", "v")}
    # a norm between projection and score excludes a closed form G_i
    if attention == "joint_qk" and a.qk_norm is None:
        squared, mean = p.metric_of("q", "k")
        return {"joint_qk": joint_qk(a, squared, mean, p.options.junction, p.options.window)}
    if attention == "split_head":
        return {"q": p.by_head("q", a.n_q), "k": p.by_head("k", a.n_kv)}
    return {name: p.single(name) for name in "qk"}


def values_and_output(p: Problem) -> LayerFactors:
    """Return slots v and o, or joint_vo; only o if v is in joint_qkv, none of native attention."""
    a, o = p.layer.attention, p.options
    if a.factors is not None:
        return {}
    if o.attention == "joint_qkv":
        return {"o": p.single("o")}
    if o.vo != "split":
        # the mean that v loses can only move into the bias of o
        centered = o.bias == "add" or (o.bias == "update" and a.o.bias is not None)
        squared, mean = p.metric("attn_in", centered)
        if o.vo == "joint":
            return {"joint_vo": joint_vo(a, squared, mean, o.junction)}
        return {"joint_vo": attention_aware_vo(a, squared, mean, o.junction, p.moments)}
    v = p.by_head("v", a.n_v) if o.attention == "split_head" else p.single("v")
    return {"v": v, "o": p.single("o")}


def mlp_matrices(p: Problem) -> LayerFactors:
    """Return the slots of the MLP: its matrices, or joint_ud for a plain ReLU MLP."""
    m, o = p.layer.mlp, p.options
    plain_relu = (
        m is not None
        and m.gate is None
        and m.activation == "relu"
        and not isinstance(m.up, LowRank)
        and not isinstance(m.down, LowRank)
    )
    if o.mlp != "joint" or o.sparse or not plain_relu:
        matrices = p.layer.matrices()
        return {name: p.single(name) for name in ("gate", "up", "down") if name in matrices}
    separate = {name: p.stacked(name) for name in ("up", "down")}
    seconds = {
        name: (p.moments.second if solved.mean is None else p.moments.centered)(TAPS[name])
        for name, solved in separate.items()
    }
    sample = p.moments.values["mlp_in", "sample"]
    return {"joint_ud": joint_ud(p.layer, separate, seconds, sample, o.junction)}


METHOD = Method(
    name="latentllm",
    paper="LatentLLM: Attention-Aware Joint Tensor Compression (Koike-Akino et al., 2025)",
    summary="Replaces each projection by two factors; queries and keys share one of them.",
    notes="Each projection becomes B A. Q and K have a common A each for all heads (HOSVD, with "
    "rotary summed over offsets); normalized queries and keys, v, o and the matrices of the MLP "
    "are factorized separately. mlp=joint solves up and down of a ReLU MLP jointly, in some "
    "seconds per layer. A block identity saves r^2 numbers, and d_h^2 per key head without rotary; "
    "the KV cache is unchanged. Means move into existing biases; without a bias the moments are "
    "not centered, or option bias=add adds one. With attention=joint_qkv both block identities lie "
    "in the A that q, k and v share, and vo is not read. vo=attention measures the "
    "attention-weighted values, up to 4096 numbers per token. With split_head the ranks are per "
    "head, and o is factorized as a single matrix. sparse adds a sparse term to separate matrices "
    "(and solves up and down separately); bits stores factors as quantized weights, which a ratio "
    "does not count.",
    factor=EachExpert(factor),
    components=("joint_qk", "v", "o", "joint_ud", "gate", "up", "down"),
    needs=NEEDS,
    shrinks_kv=False,
    holds={
        "joint_qk": ("q", "k"),
        "joint_vo": ("v", "o"),
        "joint_ud": ("up", "down"),
        "joint_qkv": ("q", "k", "v"),
    },
    options=LatentLLMOptions,
    extra_needs=EXTRA_NEEDS,
    copies=2,
)
