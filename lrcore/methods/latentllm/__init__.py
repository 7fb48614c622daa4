"""LatentLLM: Attention-Aware Joint Tensor Compression.

Every projection becomes `B A`; the shapes of heads and of the KV cache stay.

* Preconditioners and junctions: `junction.py`. One matrix, one head, or q, k and v over one shared
A: `local.py`.
* Joint QK and joint VO by alternating SVD: `hosvd.py`, `joint.py`. Joint VO by the output of the
attention: `attention_solver.py`,
  `joint_attention.py`; it alone reads moments that the common calibration leaves out. Joint UD of a
  ReLU MLP: `mlp.py`.
* A sparse term beside B A, for matrices on their own: `sparse.py`. Factors as codes of a few bits:
`quantised.py`.

Means: where a projection has a bias, its metric is the covariance and `b^ = b + (W - B A) mu`
(appendix B.2). Where it has none, the option `bias` says what is done: "update" leaves it without
and takes the uncentred moment, which is then the optimum; "add" gives it one. Where queries and
keys are normalised, they are factored on their own; so are the matrices of an MLP that is gated or
has another activation than ReLU, for which the paper has no closed form.
"""

from torch import Tensor

from ...layer import Layer
from ...options import Option
from ...statistics import TAPS, Moments
from ..factors import Factor, Factors
from .joint import joint_qk, joint_vo
from .joint_attention import attention_aware_vo
from .junction import JUNCTIONS, PRECONDITIONERS, squared_metric
from .local import split_heads, stacked
from .mlp import joint_ud
from .quantised import quantised
from .sparse import plus_sparse

NEEDS = frozenset(
    (tap, statistic) for tap in TAPS.values() for statistic in ("second", "mean", "abs")
) | {("mlp_in", "sample")}
EXTRA_NEEDS = {
    ("vo", "attention"): frozenset({("weighted_values", "second"), ("weighted_values", "mean")})
}

ATTENTION = ("joint_qk", "local", "split_head", "joint_qkv")
OPTIONS = (
    Option(
        "preconditioner",
        "root_covariance",
        "metric of the input (table 1)",
        choices=PRECONDITIONERS,
    ),
    Option("exponent", 1.0, "power of E|x| in diag_l1", low=0.0, high=4.0),
    Option(
        "damping", 0.0, "share of the mean diagonal added to the second moment", low=0.0, high=10.0
    ),
    Option(
        "junction",
        "right_identity",
        "where the scale goes, or which factor leaves an identity block out",
        choices=JUNCTIONS,
    ),
    Option(
        "bias",
        "update",
        "means go into the biases there are, into added ones too, or into none",
        choices=("update", "add", "keep"),
    ),
    Option("attention", "joint_qk", "what is factored together", choices=ATTENTION),
    Option(
        "vo",
        "split",
        "v and o alone, or together for all heads: joint by the layer's input, attention by what "
        "the heads attend to (not with joint_qkv)",
        choices=("split", "joint", "attention"),
    ),
    Option(
        "mlp",
        "local",
        "up and down each on its own, or together where the MLP is a plain ReLU one",
        choices=("local", "joint"),
    ),
    Option(
        "window",
        5,
        "rotary offsets that joint_qk sums over; 0 leaves the rotation out",
        low=0,
        high=64,
    ),
    Option(
        "sparse",
        0.0,
        "share of a matrix's entries kept in a sparse term, where it is factored on its own",
        low=0.0,
        high=0.4,
    ),
    Option(
        "bits",
        0,
        "bits of the codes that factors are stored as; 0 stores plain numbers",
        low=0,
        high=8,
    ),
    Option("chunk", 64, "numbers that share the two scales of their codes", low=8, high=65536),
)


def factor(
    layer: Layer,
    moments: Moments,
    preconditioner: str = "root_covariance",
    exponent: float = 1.0,
    damping: float = 0.0,
    junction: str = "right_identity",
    bias: str = "update",
    attention: str = "joint_qk",
    vo: str = "split",
    mlp: str = "local",
    window: int = 5,
    sparse: float = 0.0,
    bits: int = 0,
    chunk: int = 64,
) -> Factors:
    """Solve every slot of one layer for all ranks; the alternating ones finish at their rank."""
    a, matrices = layer.attention, layer.matrices()

    def metric(names: tuple[str, ...]) -> tuple[Tensor | None, Tensor | None]:
        """P^2 of the input that the named projections share, and its mean where it goes into
        their biases.
        """
        tap = TAPS[names[0]]
        centred = bias == "add" or (
            bias == "update" and all(matrices[name].bias is not None for name in names)
        )
        second = moments.centred(tap) if centred else moments.second(tap)
        found = squared_metric(
            preconditioner, second, moments.values[tap, "abs"], exponent, damping
        )
        return found, moments.mean(tap) if centred else None

    def alone(name: str) -> Factor:
        squared, mean = metric((name,))
        own = stacked(layer, (name,), squared, mean, junction)
        return plus_sparse(layer, own, squared, sparse) if sparse else own

    factors: Factors = {}
    if attention == "joint_qkv":
        factors["joint_qkv"] = stacked(layer, ("q", "k", "v"), *metric(("q", "k", "v")), junction)
    elif (
        attention == "joint_qk" and a.qk_norm is None
    ):  # a norm between projection and score leaves no G_i to factor
        factors["joint_qk"] = joint_qk(a, *metric(("q", "k")), junction, window)
    elif attention == "split_head":
        factors |= {
            name: split_heads(layer, name, n, *metric((name,)), junction)
            for name, n in (("q", a.n_q), ("k", a.n_kv))
        }
    else:
        factors |= {name: alone(name) for name in "qk"}
    if vo != "split" and attention != "joint_qkv":
        # the mean of the layer's input meets v; whether it can be made up for is up to the bias of
        # o
        centred = bias == "add" or (bias == "update" and a.o.bias is not None)
        second = moments.centred("attn_in") if centred else moments.second("attn_in")
        found = squared_metric(
            preconditioner, second, moments.values["attn_in", "abs"], exponent, damping
        )
        mean = moments.mean("attn_in") if centred else None
        together = (a, found, mean, junction)
        factors["joint_vo"] = (
            joint_vo(*together) if vo == "joint" else attention_aware_vo(*together, moments)
        )
    elif attention == "joint_qkv":
        factors["o"] = alone("o")
    else:
        factors["v"] = (
            split_heads(layer, "v", a.n_kv, *metric(("v",)), junction)
            if attention == "split_head"
            else alone("v")
        )
        factors["o"] = alone("o")
    if (
        mlp == "joint"
        and not sparse
        and layer.mlp is not None
        and layer.mlp.gate is None
        and layer.mlp.activation == "relu"
    ):
        own = {name: stacked(layer, (name,), *metric((name,)), junction) for name in ("up", "down")}
        seconds = {
            name: (moments.second if own[name].mean is None else moments.centred)(TAPS[name])
            for name in own
        }
        factors["joint_ud"] = joint_ud(
            layer, own, seconds, moments.values["mlp_in", "sample"], junction
        )
    else:
        factors |= {name: alone(name) for name in ("gate", "up", "down") if name in matrices}
    return (
        {name: quantised(factor, bits, chunk) for name, factor in factors.items()}
        if bits
        else factors
    )
