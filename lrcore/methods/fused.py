"""`fused`: a method of this project that combines the best parts of the papers' methods.

* QK without rotary: A3's joint SVD on *centered* keys. A shift of all keys shifts all scores of a
  query equally and does not change its softmax, so the mean of the keys needs no rank. With
  qk=softmax, the keys are weighted by the attention of each query (lrcore/models/attended_keys.py).
  With rotary: complete pairs, ranked by the post-rotary scores of MoDeGPT. Unrotated columns
  (partial rotary) are compressed as without rotary; two directions count as a pair.
* OV: the value map is computed from the centered moments of the head *outputs*, summed over the
  group that shares a value head (A3 uses the value states for GQA). Then the complete output
  projection is refit by least squares on the narrowed head outputs, across heads.
* MLP: neurons are eliminated as in optimal brain surgeon, in the metric of the output, with the
  exact refit.
* Each of the three parts can also have alternative forms (lrcore/methods/fused_forms.py): low-rank
  pairs, or cached latents under a budget of the KV cache. Policies that choose between forms
  (lrcore/layers/spectra.py) take the form with the lower loss.
* Means move into the biases of the output and down projections (LatentLLM, appendix B.2); a
  projection without a bias gets one.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.elimination import elimination_order
from ..layers.layer import Attention, Layer, Linear, map_rows, output_heads
from ..layers.linalg import (
    Lower,
    cholesky,
    eigh_descending,
    leading_refit,
    reordered_cholesky,
    roots,
    times_lower,
)
from ..layers.spectra import Cost, Form
from ..layers.statistics import ATTENDED_KEYS, COMMON_TAPS, Moments
from ..system.settings import option
from ..system.threads import at_once
from .attention_factors import ColumnOrder, HeadMaps
from .attention_scores import (
    column_order,
    joint_blocks,
    joint_scores,
    sum_pairs,
    unrotated_directions,
    unrotated_pairs,
)
from .costs import mlp_cost, ov_cost, qk_cost
from .expert_factors import EachExpert
from .factors import Factor, LayerFactors, NystromOrder, mlp_of, moved_bias, pooled
from .fused_forms import cached_latents, pairs
from .grams import by_group, head_gram, output_gram
from .method import COMPONENT_MATRICES, COMPONENTS, JOINT_GATE_UP, Method
from .modegpt import column_losses, qk_cr, refit_damping, shrinkage_option

NEEDS = frozenset(
    {("q_rotated", "square"), ("k_rotated", "square")}
    | {(tap, statistic) for tap in COMMON_TAPS for statistic in ("second", "mean")},
)

FORMS = (
    {name: Form(name, "narrowed") for name in COMPONENTS}
    | {name: Form(part, "pairs") for part, names in COMPONENT_MATRICES.items() for name in names}
    | {"joint_qk": Form("qk", "pairs"), JOINT_GATE_UP: Form("mlp", "pairs")}
    | {"latent_k": Form("qk", "latent"), "latent_v": Form("ov", "latent")}
)


@dataclass(frozen=True)
class FusedOptions:
    qk: str = option(
        "centered",
        "Metric of the keys, without rotary. centered: their covariance over the tokens. softmax: "
        "their covariance under the attention weights of each query, which needs an additional "
        "pass over the calibration windows (not for bloom, mpt and gpt_neo).",
        choices=("centered", "softmax"),
    )
    forms: str = option(
        "auto",
        "Forms in addition to narrowed heads and removed neurons. pairs: each matrix as a low-rank "
        "pair. codes: as pairs, but gate and up as a common dictionary and sparse codes: a lower "
        "loss, slower decoding. latents: keys and values as cached latents; the MLP is unchanged. "
        "narrowed: no additional form of parts that can be narrowed; sufficient for all policies "
        "except probed, and faster. auto: latents under budget kv; narrowed if a model is "
        "compressed directly by such a policy; otherwise pairs.",
        choices=("auto", "pairs", "codes", "latents", "narrowed"),
    )
    shrinkage: bool = shrinkage_option()


DEFAULT = FusedOptions()


def factor(layer: Layer, moments: Moments, options: FusedOptions = DEFAULT) -> LayerFactors:
    """Return the factors of QK, OV and MLP of a layer, if present, for all ranks.

    Each part is narrowed, and each matrix is also factored as a low-rank pair. With forms=narrowed,
    only matrices that belong to no narrowed part are factored as pairs. With forms=latents, QK and
    OV are narrowed, and keys and values are also factored as cached latents.
    """
    latents = options.forms == "latents"
    a = layer.attention
    qk = qk_pairs if a.position == "rotary" else qk_centered
    solve: dict[str, Callable[[], Factor]] = {
        "qk": lambda: qk(a, moments),
        "ov": lambda: ov_refit(a, moments, options.shrinkage),
        "mlp": lambda: mlp_elimination(layer, moments, options.shrinkage),
    }
    narrowed = [name for name in layer.components if not (latents and name == "mlp")]
    solvers = {name: solve[name] for name in narrowed} | _pairs(layer, moments, options.forms)
    solved = at_once(lambda name: solvers[name](), _as_large(layer, solvers))
    return solved | (cached_latents(layer, moments) if latents else {})


def _pairs(layer: Layer, moments: Moments, forms: str) -> dict[str, Callable[[], Factor]]:
    """Return a function per slot that solves a matrix as a pair, for the slots that the option
    `forms` requires.
    """
    if forms == "latents":
        return {}
    solve = pairs(layer, moments, with_codes=forms == "codes")
    if forms != "narrowed":
        return solve
    held = {name for name, form in FORMS.items() if form.part in layer.components}
    return {name: solver for name, solver in solve.items() if name not in held}


def _as_large(layer: Layer, slots: Collection[str]) -> dict[str, Tensor]:
    """Return a tensor of the size of the decomposed matrix per slot.

    `at_once` decides by the sizes whether the slots are solved in parallel.
    """
    matrices = layer.matrices()
    shapes = dict.fromkeys(slots, layer.attention.o.weight)
    shapes |= {name: matrix.weight for name, matrix in matrices.items() if name in slots}
    if JOINT_GATE_UP in slots:
        shapes[JOINT_GATE_UP] = matrices["up"].weight
    if "mlp" in slots:
        down = matrices["down"].weight
        shapes["mlp"] = down[:1].expand(down.shape[1], -1)  # [n, n] without memory
    return shapes


def qk_centered(a: Attention, moments: Moments) -> HeadMaps:
    """Return the joint SVD of the scores up to a shift per query.

    `V` are the eigenvectors of `K^{1/2} (sum_i G_q,i) K^{1/2}`, K the covariance of the keys, under
    the attention weights if the moments contain it. q_maps [n_q, d_h, d_h], k_maps [n_kv, d_h,
    d_h]. Equals `a3.qk_svd` (MHA) or `a3.qk_joint` (GQA) if the keys have mean zero; never worse in
    the variance of the scores over keys.
    """
    query, key = centered_grams(a, moments)
    key = moments.values.get(ATTENDED_KEYS, key)
    squares, q_maps, k_maps = joint_scores(query, key)
    s = squares.sqrt()
    return HeadMaps(pooled(s), qk_cost(a), s, q_maps.repeat_interleave(a.group, 0), k_maps)


def qk_pairs(a: Attention, moments: Moments) -> ColumnOrder:
    """Return the order of QK with rotary: `modegpt.qk_cr`.

    With partial rotary, pairs and directions are ordered by their squared losses; the losses of the
    unrotated columns are those of `qk_centered`.
    """
    unrotated = unrotated_pairs(a)
    if unrotated is None:
        return qk_cr(a, moments)
    solve = joint_blocks(*centered_grams(a, moments))
    squares, maps = unrotated_directions(column_losses(a, moments), unrotated, solve)
    return column_order(a, sum_pairs(squares), sum_pairs(squares), maps)


def centered_grams(a: Attention, moments: Moments) -> tuple[Tensor, Tensor]:
    """Return the second moments of the queries, summed over the group, and the covariance of the
    keys, before rotary: [n_kv, qk_size, qk_size] each.
    """
    centered = Moments(
        {
            ("attn_in", "second"): moments.centered("attn_in"),
            ("attn_in", "mean"): 0 * moments.mean("attn_in"),
        },
        moments.tokens,
    )
    unbiased = replace(a, k=Linear(a.k.weight))
    return by_group(head_gram(a, "q", moments), a).sum(1), head_gram(unbiased, "k", centered)


@dataclass(frozen=True, eq=False)
class RefitValueMaps:
    """OV: `v^ = T v`, T the first r rows of v_maps [n_kv, d_h, d_h]. The output projection is refit
    on the narrowed head outputs a^ = N a, and its bias compensates for the lost mean.

    The entries of a^ are ordered with the first entries of all heads first. With C the covariance
    of a, `N C N^T = L L^T` serves every rank: the refit on the first m entries is
    `(W_o N^{-1} L)[:, :m] L[:m, :m]^{-1}`. cholesky: L [n_q * d_h, n_q * d_h]; product: W_o N^{-1}
    L [d, n_q * d_h]; means: of a [n_q * d_h] and of a^, in that order.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    v_maps: Tensor
    cholesky: Lower
    product: Tensor
    means: tuple[Tensor, Tensor]

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a, dtype = layer.attention, layer.attention.o.weight.dtype
        m = a.n_q * rank
        refit = leading_refit(self.cholesky, self.product, m)
        mean, narrowed = self.means
        bias = moved_bias(a.o, a.o.weight.double() @ mean - refit @ narrowed[:m])
        # [d, rank * n_q] -> [d, n_q * rank]
        by_head = refit.unflatten(1, (rank, a.n_q)).transpose(1, 2).flatten(1)
        o, v = Linear(by_head.to(dtype), bias), map_rows(a.v, self.v_maps[:, :rank])
        latent = a.latent.replace("v", "")
        return replace(layer, attention=replace(a, v=v, o=o, v_size=rank, latent=latent))


def ov_refit(a: Attention, moments: Moments, shrinkage: bool = True) -> RefitValueMaps:
    """Return the value maps `T = V^T G^{-1/2}`, V the eigenvectors of
    `G^{1/2} (sum_i W_o,i^T W_o,i) G^{1/2}`, G the mean covariance of the outputs of the group.

    The loss curve is that of the map before the refit across heads: an upper bound for MHA, since
    the refit lowers the loss, and an estimate for GQA.
    """
    covariance = moments.centered("attn_out")
    centered = Moments({("attn_out", "second"): covariance}, moments.tokens)
    root, inverse = roots(by_group(output_gram(a, centered), a).mean(1))
    out = output_heads(a.o.weight.double(), a.n_q)
    squares, v = eigh_descending(root @ by_group(out.mT @ out, a).sum(1) @ root)
    cost = ov_cost(a)
    if a.o.bias is None:  # the mean moves into an added bias
        cost = cost.with_biases(a.o.weight.shape[0])
    v_maps, mean = v.mT @ inverse, moments.mean("attn_out")
    maps = v_maps.repeat_interleave(a.group, 0)  # [n_q, d_h, d_h]
    # cross = N C, gram = N C N^T, the entries of a^ in order: [d_h, n_q, ...] -> [d_h * n_q, ...]
    cross = torch.einsum("nrs,nsm->rnm", maps, covariance.unflatten(0, (a.n_q, -1))).flatten(0, 1)
    gram = torch.einsum("nrs,mns->mrn", maps, cross.unflatten(1, (a.n_q, -1))).flatten(1)
    lower = cholesky(gram, refit_damping(gram, moments, shrinkage))
    restored = out @ (root @ v).repeat_interleave(a.group, 0)  # W_o N^{-1}, [n_q, d, d_h]
    product = times_lower(restored.permute(1, 2, 0).flatten(1), lower)
    narrowed = (maps @ mean.unflatten(0, (a.n_q, -1)).unsqueeze(-1)).squeeze(-1).mT.flatten()
    return RefitValueMaps(
        pooled(squares.sqrt()),
        cost,
        squares.sqrt(),
        v_maps,
        Lower.of(lower),
        product,
        (mean, narrowed),
    )


def mlp_elimination(layer: Layer, moments: Moments, shrinkage: bool = True) -> NystromOrder:
    """Return the neurons in the order of optimal brain surgeon: they are removed one by one, always
    the neuron whose removal changes the output least after the refit of the remaining ones.

    This is the neuron j with the least `|w_j|^2 / [C^{-1}]_jj`, C the covariance of the hidden
    state. The loss curve is exact.
    """
    mlp = mlp_of(layer)
    down = mlp.down.weight.double()
    # The covariance is computed anew: for a wide MLP it has gigabytes, which must be free between.
    damping = refit_damping(moments.centered("mlp_hidden"), moments, shrinkage)
    order = elimination_order(down, moments.centered("mlp_hidden"), damping)
    lower = reordered_cholesky(moments.centered("mlp_hidden"), order, damping)
    product = times_lower(down[:, order], lower)
    cost = mlp_cost(mlp)
    if mlp.down.bias is None:
        cost = cost.with_biases(down.shape[0])
    return NystromOrder(
        product.norm(dim=0),
        cost,
        None,
        order,
        Lower.of(lower),
        product,
        moments.mean("mlp_hidden"),
    )


METHOD = Method(
    name="fused",
    paper="developed in this project",
    summary="Narrows or factorizes each component, and refits layers on the compressed ones.",
    notes="QK: centered keys without rotary, complete pairs with rotary, both with partial rotary. "
    "OV: map on the head outputs, output projection refit across heads. MLP: elimination of "
    "neurons with exact refit. Each part also as low-rank pairs (of LatentLLM), which do not "
    "change the KV cache; policy probed chooses the form with the lower loss for each part. Under "
    "budget kv the alternative form of keys and values is cached latents. Means move into the "
    "biases; projections without a bias get one. Unless the recipe has 'refit: off', each layer is "
    "then refit on the outputs of the preceding compressed layers, towards the dense residual "
    "stream.",
    factor=EachExpert(factor),
    components=COMPONENTS,
    needs=NEEDS,
    extra_needs={("qk", "softmax"): frozenset({ATTENDED_KEYS})},
    shrinks_kv=True,
    holds={
        **COMPONENT_MATRICES,
        "joint_qk": COMPONENT_MATRICES["qk"],
        JOINT_GATE_UP: ("gate", "up"),
        "latent_k": COMPONENT_MATRICES["qk"],
        "latent_v": COMPONENT_MATRICES["ov"],
    },
    options=FusedOptions,
    auto_by_budget={"kv": {"forms": "latents"}},
    auto_for_first_forms={"forms": "narrowed"},
    refit=True,
    adds_biases=True,
    forms=FORMS,
    copies=5,
    low_rank_copies=1,
)
