"""LatentLLM: Attention-Aware Joint Tensor Compression.

Every projection becomes `B A`; the shapes of heads and of the KV cache stay as they are.

* Preconditioners and junctions: `junction.py`.
* One matrix, one head, or q, k and v over one shared A: `local.py`.
* Joint QK and joint VO by alternating SVD: `hosvd.py`, `subspace.py`, `joint.py`.
* Joint VO by the output of the attention: `attention_solver.py`, `joint_attention.py`. It alone
  reads moments that the common calibration does not collect.
* Joint UD of a ReLU MLP: `mlp.py`.
* A sparse term beside B A, for matrices on their own: `sparse.py`.
* Factors as quantised weights: `quantised.py`.

Means: where a projection has a bias, its metric is the covariance, and `b^ = b + (W - B A) mu`
(appendix B.2). Where it has none, the option `bias` decides: "update" adds none and takes the
uncentred moment, which is then the optimum; "add" adds one. Queries and keys that are normalised
are factored on their own; so are the matrices of an MLP that is gated or has another activation
than ReLU, for which the paper has no closed form.
"""

from dataclasses import dataclass

from torch import Tensor

from ...layer import Layer, LowRank
from ...options import option
from ...statistics import COMMON_TAPS, TAPS, Moments
from ..experts import EachExpert
from ..factors import Factor, LayerFactors
from ..method import Method
from .joint import joint_qk, joint_vo
from .joint_attention import attention_aware_vo
from .junction import JUNCTIONS, PRECONDITIONERS, squared_metric
from .local import StackedMatrices, split_heads, stacked
from .mlp import joint_ud
from .quantised import quantised
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
        "share of the mean diagonal added to the second moment",
        low=0.0,
        high=10.0,
    )
    junction: str = option(
        "right_identity",
        "side that takes the scale, or factor that an identity block is left out of",
        choices=JUNCTIONS,
    )
    bias: str = option(
        "update",
        "means go into the biases there are, into added ones too, or into none",
        choices=("update", "add", "keep"),
    )
    attention: str = option(
        "joint_qk",
        "what is factored together",
        choices=ATTENTION,
    )
    vo: str = option(
        "split",
        "v and o each on its own, or together for all heads: joint by the layer's input, attention "
        "by the attention-weighted values (not with joint_qkv)",
        choices=("split", "joint", "attention"),
    )
    mlp: str = option(
        "local",
        "up and down each on its own, or together where the MLP is a plain ReLU one",
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
        "share of a matrix's entries kept in a sparse term, where it is factored on its own",
        low=0.0,
        high=0.4,
    )
    bits: int = option(
        0,
        "bits of the quantised weights that factors are stored as; 0: not quantised",
        low=0,
        high=8,
    )
    chunk: int = option(
        64,
        "weights that share a scale and a zero point",
        low=8,
        high=65536,
    )


DEFAULT = LatentLLMOptions()


@dataclass(frozen=True, eq=False)
class Problem:
    """One layer with its moments and the options, and the factors of one or more projections."""

    layer: Layer
    moments: Moments
    options: LatentLLMOptions

    def metric(self, tap: str, centred: bool) -> tuple[Tensor | None, Tensor | None]:
        """P^2 of a tap [in, in], None for the identity; and its mean [in] where it is centred."""
        o, moments = self.options, self.moments
        second = moments.centred(tap) if centred else moments.second(tap)
        squared = squared_metric(
            o.preconditioner, second, moments.values[tap, "abs"], o.exponent, o.damping
        )
        return squared, moments.mean(tap) if centred else None

    def metric_of(self, *names: str) -> tuple[Tensor | None, Tensor | None]:
        """P^2 [in, in] of the input that the named projections share, and its mean [in] where it
        goes into their biases.
        """
        matrices, bias = self.layer.matrices(), self.options.bias
        centred = bias == "add" or (
            bias == "update" and all(matrices[name].bias is not None for name in names)
        )
        return self.metric(TAPS[names[0]], centred)

    def stacked(self, *names: str) -> StackedMatrices:
        """The named projections over one shared A."""
        return stacked(self.layer, names, *self.metric_of(*names), self.options.junction)

    def by_head(self, name: str, count: int) -> Factor:
        """A projection with an A for every head."""
        squared, mean = self.metric_of(name)
        return split_heads(self.layer, name, count, squared, mean, self.options.junction)

    def alone(self, name: str) -> Factor:
        """A projection on its own, with a sparse term where the options want one."""
        squared, mean = self.metric_of(name)
        own = stacked(self.layer, (name,), squared, mean, self.options.junction)
        sparse = self.options.sparse
        return plus_sparse(self.layer, own, squared, sparse) if sparse else own


def factor(layer: Layer, moments: Moments, options: LatentLLMOptions = DEFAULT) -> LayerFactors:
    """Solve every slot of one layer for all ranks. Alternating solutions run their rounds in
    `truncate`, at a given rank: those of joint QK and VO by products (`subspace.py`).
    """
    problem = Problem(layer, moments, options)
    layer_factors = mlp_matrices(problem)
    if layer.expert is None:
        layer_factors = queries_and_keys(problem) | values_and_output(problem) | layer_factors
    if not options.bits:
        return layer_factors
    bits, chunk = options.bits, options.chunk
    return {name: quantised(solved, bits, chunk) for name, solved in layer_factors.items()}


def queries_and_keys(p: Problem) -> LayerFactors:
    """Slots q and k, or joint_qk, or joint_qkv."""
    a, attention = p.layer.attention, p.options.attention
    if a.factors is not None:  # latents of its own, with norms between
        return {name: p.alone(name) for name in a.factors if name != "o"}
    if attention == "joint_qkv":
        return {"joint_qkv": p.stacked("q", "k", "v")}
    # with a norm between projection and score there is no G_i to factor
    if attention == "joint_qk" and a.qk_norm is None:
        squared, mean = p.metric_of("q", "k")
        return {"joint_qk": joint_qk(a, squared, mean, p.options.junction, p.options.window)}
    if attention == "split_head":
        return {"q": p.by_head("q", a.n_q), "k": p.by_head("k", a.n_kv)}
    return {name: p.alone(name) for name in "qk"}


def values_and_output(p: Problem) -> LayerFactors:
    """Slots v and o, or joint_vo; only o where v is in joint_qkv."""
    a, o = p.layer.attention, p.options
    if a.factors is not None:
        return {"o": p.alone("o")}
    if o.attention == "joint_qkv":
        return {"o": p.alone("o")}
    if o.vo != "split":
        # what v loses of the input's mean can only go into the bias of o
        centred = o.bias == "add" or (o.bias == "update" and a.o.bias is not None)
        squared, mean = p.metric("attn_in", centred)
        if o.vo == "joint":
            return {"joint_vo": joint_vo(a, squared, mean, o.junction)}
        return {"joint_vo": attention_aware_vo(a, squared, mean, o.junction, p.moments)}
    v = p.by_head("v", a.n_v) if o.attention == "split_head" else p.alone("v")
    return {"v": v, "o": p.alone("o")}


def mlp_matrices(p: Problem) -> LayerFactors:
    """Slots of the MLP: its matrices, or joint_ud of a plain ReLU MLP."""
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
        return {name: p.alone(name) for name in ("gate", "up", "down") if name in matrices}
    own = {name: p.stacked(name) for name in ("up", "down")}
    seconds = {
        name: (p.moments.second if own[name].mean is None else p.moments.centred)(TAPS[name])
        for name in own
    }
    sample = p.moments.values["mlp_in", "sample"]
    return {"joint_ud": joint_ud(p.layer, own, seconds, sample, o.junction)}


METHOD = Method(
    name="latentllm",
    paper="LatentLLM: Attention-Aware Joint Tensor Compression (Koike-Akino et al., 2025)",
    notes="Every projection becomes B A. Q and K have one A each for all heads (HOSVD, summed over "
    "rotary offsets where there are any), and are factored on their own where they are normalised; "
    "so are v, o and the matrices of the MLP. mlp=joint solves up and down of a ReLU MLP together, "
    "in some seconds per layer. A block identity saves r^2 numbers, and d_h^2 per key head without "
    "rotary; the KV cache stays as it is. Means go into existing biases; without one the moments "
    "are not centred, or option bias=add adds one. With attention=joint_qkv both block identities "
    "lie in the A that q, k and v share, and vo is not read. vo=attention measures the "
    "attention-weighted values, up to 4096 numbers per token. With split_head the ranks are per "
    "head, and o is factored as a whole. sparse adds a sparse term to matrices on their own (and "
    "solves up and down separately); bits stores factors as quantised weights, which a ratio does "
    "not count.",
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
