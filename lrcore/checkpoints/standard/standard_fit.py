"""Checks whether a model fits a standard architecture of transformers.

A model fits without changes if only its MLPs are narrower, all by the same width. Other models can
be converted (see family_modules.py).

A model whose residual stream was sliced with a single rotation fits if the family has RMSNorm and a
config field for the head size: the config gets the new width d', each norm the weight sqrt(d / d')
and its eps is multiplied by d / d', which turns a mean over d' columns into a mean over d columns.
"""

from bisect import bisect_right

import torch
from transformers import PreTrainedModel

from ...layers.experts import STACKED
from ...layers.modules.compressed import CompressedAttention
from ...layers.modules.projections import LowRankLinear, StoredLinear
from ...layers.modules.sliced import has_residual_matrices
from ...layers.spectra import Slot
from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.layers import read_layer
from ...models.load import LoadedModel
from ...models.structure import sliced_modules
from ...ranks.plan import RankPlan
from ...recipes.history import QUANTIZED_NOT_STANDARD, StandardFit
from ...system.errors import with_article

SLICED_FIELDS = ("head_dim", "rms_norm_eps")  # config fields that a sliced model needs
ODD_EXPERTS = f"the width of experts is not a multiple of {STACKED}, as stacked experts need"


def standard_fit(model: LoadedModel, plan: RankPlan) -> StandardFit:
    """Check whether a dense model fits a standard architecture after compression by a plan.

    If it does not, the result contains ranks with which it would: full ranks of QK and OV, and a
    common width of all MLPs, the largest with at most as many parameters as the plan, or the
    smallest if narrower MLPs cannot save enough.
    """
    if plan.bits:
        return QUANTIZED_NOT_STANDARD
    network = model.network
    structural = structural_reasons(network)
    if _is_compressed(network):
        structural.append("its layers were narrowed or factored before")
    bias_reasons = _bias_reasons(network, plan)
    reasons = [*structural, *_rank_reasons(plan), *bias_reasons]
    has_ranks = not structural and not bias_reasons and _has_even_mlps(plan)
    return StandardFit(not reasons, tuple(reasons), _even_ranks(plan) if has_ranks else None)


def structural_reasons(network: PreTrainedModel) -> list[str]:
    """Return reasons why a network does not fit a standard architecture with any ranks."""
    family, row = text_config(network).model_type, architecture_of(network)
    if sliced_modules(network):
        return sliced_reasons(network)
    if row.experts and not row.expert_width:
        return [f"the width of shared experts in {family} is derived from other sizes"]
    if isinstance(getattr(text_config(network), "intermediate_size", None), list):
        return [f"the MLP width of {family} differs by layer"]
    if not row.width and not row.expert_width:
        return [f"the MLP width of {family} is derived from the hidden size"]
    return []


def sliced_reasons(network: PreTrainedModel) -> list[str]:
    """Return reasons why a sliced network does not fit a standard architecture."""
    text, embedding = text_config(network), network.get_input_embeddings()
    if has_residual_matrices(network):
        return [
            "its residual stream is sliced in several bases, and no family has the matrices "
            "between them"
        ]
    has_fields = all(hasattr(type(text)(), name) for name in SLICED_FIELDS)
    if type(embedding) is not torch.nn.Embedding or not has_fields:
        return [
            "its residual stream is sliced, which the head size, norms or embeddings of "
            f"{with_article(text.model_type)} model do not support"
        ]
    heads, width = text.num_attention_heads, embedding.embedding_dim
    if width % heads:
        return [
            f"the width {width} of its residual stream is not a multiple of its {heads} heads: "
            f"slice it with multiple {heads}"
        ]
    return []


def _is_compressed(network: PreTrainedModel) -> bool:
    """Return True if a layer has modules that its family lacks."""
    return any(
        isinstance(module, CompressedAttention | LowRankLinear | StoredLinear)
        for module in decoder_layers(network).modules()
    )


def _rank_reasons(plan: RankPlan) -> list[str]:
    """Return reasons why the ranks of a plan do not fit a standard architecture."""
    mlp = {slot: s.cost for slot, s in plan.spectra.items() if slot[1] == "mlp"}
    if not mlp:
        return [
            "the method factors matrices, which standard architectures do not support; use a "
            "method on components"
        ]
    reasons = []
    reduced = sorted(
        {
            name
            for (_, name), rank in plan.ranks.items()
            if name != "mlp" and rank < plan.spectra[_, name].cost.full
        }
    )
    if reduced:
        reasons.append(f"{', '.join(reduced)} below full rank")
    kinds = {cost.copies > 1 for cost in mlp.values()}  # MLPs, and experts
    if len({(cost.copies > 1, plan.ranks[slot]) for slot, cost in mlp.items()}) > len(kinds):
        reasons.append("MLPs of different widths")
    if any(plan.ranks[slot] % STACKED for slot, cost in mlp.items() if cost.copies > 1):
        reasons.append(ODD_EXPERTS)
    return reasons


def _bias_reasons(network: PreTrainedModel, plan: RankPlan) -> list[str]:
    """Return a reason if the method adds biases to MLPs that the family does not support."""
    adds_biases = any(s.cost.fixed for slot, s in plan.spectra.items() if slot[1] == "mlp")
    text = text_config(network)
    if not adds_biases or hasattr(text, "mlp_bias"):
        return []
    if all(down.bias is not None for down in read_layer(network, 0).projections_named(("down",))):
        return []
    return [
        f"the method adds a bias that the MLP of {with_article(text.model_type)} does not support; "
        "a3 and modegpt add none"
    ]


def _has_even_mlps(plan: RankPlan) -> bool:
    """Return True if all layers have slots for MLPs, or all have slots for experts."""
    costs = [s.cost for slot, s in plan.spectra.items() if slot[1] == "mlp"]
    return len(costs) == plan.shape.layers and len({cost.copies > 1 for cost in costs}) == 1


def _even_ranks(plan: RankPlan) -> dict[Slot, int]:
    full = {slot: s.cost.full for slot, s in plan.spectra.items()}
    costs = {slot: s.cost for slot, s in plan.spectra.items()}
    target = sum(cost.parameters(plan.ranks[slot]) for slot, cost in costs.items())
    target -= sum(cost.dense for slot, cost in costs.items() if slot[1] != "mlp")
    mlp = [cost for slot, cost in costs.items() if slot[1] == "mlp"]
    width = bisect_right(
        range(1, mlp[0].full + 1), target, key=lambda r: sum(cost.parameters(r) for cost in mlp)
    )
    step = STACKED if mlp[0].copies > 1 else 1
    return full | {slot: max(width - width % step, step) for slot in full if slot[1] == "mlp"}
