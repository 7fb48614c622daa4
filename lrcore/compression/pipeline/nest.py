"""Compression for a nested checkpoint, which is cut to larger ratios when it is loaded.

The plan of each ratio is that of the policy, from the same factors. Where it has a higher rank than
the plan of the next smaller ratio, the slot keeps the rank of that plan, and the policy chooses the
other ranks again. So the ranks of a slot never grow with the ratio.

The pairs of a method without a refit are in singular order already: a cut is the model that
`compress` makes from the same ranks. After a refit, or with sequential calibration, each matrix is
decomposed again in the metric of its inputs in the compressed model; cuts are not refit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...checkpoints.nested import Cut, Nested
from ...checkpoints.standard.standard_fit import standard_fit
from ...layers.layer import LowRank
from ...layers.linalg import balanced, whitened_svd
from ...layers.spectra import Slot
from ...layers.statistics import TAPS
from ...methods import METHODS, find_method
from ...models.architectures import decoder_layers
from ...models.layers import read_exact, write_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...models.structure import compressed_structures
from ...ranks.evidence import ALWAYS
from ...ranks.plan import RankPlan
from ...ranks.policies import find_policy
from ...recipes.history import Compressed
from ...recipes.provenance import Provenance
from ...recipes.recipe import Recipe
from ...system.errors import InputError
from ...system.progress import Progress, silent
from ..evidence.measure import measure_evidence
from ..solve.allocate import UNIFORM, allocate, allocation_key
from ..solve.compress_layers import has_refit
from ..solve.factorize import Factorization
from .choose_plan import choose_plan
from .compress import compress, prepare

Planned = tuple[Recipe, RankPlan]


def compress_nested(
    model: LoadedModel,
    recipe: Recipe,
    ratios: Sequence[float],
    progress: Progress | None = None,
) -> Nested:
    """Return a model compressed by a recipe, with what is needed to cut it to larger ratios.

    `save` writes it, and `load(folder, ratio=...)` cuts it. ratios: those of the cuts, above the
    ratio of the recipe and below 1.

    Raises InputError for other ratios, for a method whose matrices are no plain pairs, for a budget
    of bytes, for a model with routed experts, and as `compress` and `allocate` do.
    """
    progress = progress or silent
    check_can_nest(model, recipe, ratios)
    seconds: dict[str, float] = {}
    factors = prepare(model, recipe, progress, seconds)
    first = choose_plan(model, factors, recipe)
    small = compress(model, recipe, factors, first, progress)
    step = small.history[-1]
    assert isinstance(step, Compressed)
    step = replace(step, seconds=seconds | dict(step.seconds))
    small = replace(small, history=(*model.history, step))
    planned = [(recipe, first), *_ladder(model, factors, (recipe, first), ratios, progress)]
    ranks = _largest_ranks([plan for _, plan in planned])
    if recipe.calibration_mode == "sequential" or has_refit(recipe, model.network):
        pairs = order_pairs(small.network, factors.calibration.tokens, ranks, progress)
    else:
        dense = {slot: rank for slot, rank in ranks.items() if _is_full(first, slot)}
        pairs = {slot: _pair(model.network, factors, slot, rank) for slot, rank in dense.items()}
    cuts = [Cut(recipe.ratio, small.provenance)]
    for cut_recipe, plan in planned[1:]:
        fit = standard_fit(model, plan)
        cut_step = replace(step, recipe=cut_recipe, ranks=plan.slot_ranks, stock=fit)
        history = (*model.history, cut_step)
        cuts.append(Cut(cut_recipe.ratio, Provenance(history, small.base, plan.account)))
    return Nested(small, cuts, pairs)


def check_can_nest(model: LoadedModel, recipe: Recipe, ratios: Sequence[float]) -> None:
    """Raise InputError if no nested checkpoint can be made, see `compress_nested`."""
    row = find_method(recipe.method)
    options = row.choose(recipe.options)
    if not row.nests or getattr(options, "stored", "pairs") != "pairs":
        names = ", ".join(method.name for method in METHODS.values() if method.nests)
        raise InputError(
            f"Matrices of {recipe.method} with these options are not stored as plain pairs, which "
            f"a nested checkpoint needs. Choose one of {names}, with stored=pairs."
        )
    if recipe.budget == "bytes":
        raise InputError("A nested checkpoint is not quantized. Choose another budget than bytes.")
    if "experts" in compressed_structures(model.network):
        raise InputError(
            f"'{model.name}' has routed experts, whose pairs cannot be nested. Compress it to each "
            "ratio separately."
        )
    if not ratios or not all(recipe.ratio < ratio < 1 for ratio in ratios):
        raise InputError(
            f"The ratios of a nested checkpoint lie between the ratio of the recipe, "
            f"{recipe.ratio:g}, and 1, got {', '.join(f'{ratio:g}' for ratio in ratios) or 'none'}."
        )


def _ladder(
    model: LoadedModel,
    factors: Factorization,
    first: Planned,
    ratios: Sequence[float],
    progress: Progress,
) -> Iterator[Planned]:
    """Yield recipe and plan of each ratio, ascending. first: those of the smallest ratio.

    The policy is uniform if uniform ranks replaced those of the policy in the first plan.
    """
    recipe, previous = first
    if previous.against_uniform is not None and previous.against_uniform.hurts:
        recipe = recipe.with_(policy=UNIFORM, policy_options={})
    for ratio in sorted(set(ratios)):
        cut_recipe = recipe.with_(ratio=ratio)
        measured = measure_evidence(model, factors, cut_recipe, progress)
        planned = plan_within(measured, cut_recipe, previous)
        yield planned
        previous = planned[1]


def plan_within(factors: Factorization, recipe: Recipe, previous: RankPlan) -> Planned:
    """Return a recipe's plan without ranks above those of a previous plan, and its recipe.

    That recipe has the ranks that the previous plan limits as overrides. Raises InputError as
    `allocate` does.
    """
    needs = find_policy(recipe.policy).needs
    while True:
        if needs not in ALWAYS:  # overrides change the key of evidence for a single budget
            value = factors.evidence.get(needs)
            factors = factors.with_measurement(needs, value, allocation_key(recipe))
        plan = allocate(factors, recipe)
        limited = {
            f"{slot[0]}.{slot[1]}": previous.ranks[slot]
            for slot, rank in plan.ranks.items()
            if rank > previous.ranks[slot]
        }
        if not limited:
            return recipe, plan
        recipe = recipe.with_(rank_overrides={**recipe.rank_overrides, **limited})


def _largest_ranks(plans: Sequence[RankPlan]) -> dict[Slot, int]:
    """Return the largest rank below full of each slot that has one in any plan."""
    ranks: dict[Slot, int] = {}
    for plan in reversed(plans):  # ascending ranks
        ranks |= {slot: rank for slot, rank in plan.ranks.items() if not _is_full(plan, slot)}
    return ranks


def _is_full(plan: RankPlan, slot: Slot) -> bool:
    return plan.ranks[slot] >= plan.spectra[slot].cost.full


def _pair(network: PreTrainedModel, factors: Factorization, slot: Slot, rank: int) -> LowRank:
    """Return the method's pair of a slot."""
    index, name = slot
    layer = read_exact(network, index)
    pair = factors.layers[index][name].truncate(layer, rank).matrices()[name]
    assert isinstance(pair, LowRank)
    return pair


def order_pairs(
    network: PreTrainedModel, tokens: Tensor, ranks: Mapping[Slot, int], progress: Progress
) -> dict[Slot, LowRank]:
    """Order the pairs of a compressed network by importance, in place; return the pairs of its
    dense matrices.

    `W S^{1/2} = U s V^T` with S the second moment of the input in this network; the first terms
    are the best pair of each rank for these inputs. ranks: of the pairs. tokens [n, t].
    """
    stream, total = LayerStream(network, tokens), len(decoder_layers(network))
    pairs: dict[Slot, LowRank] = {}
    for index in range(total):
        progress("order", index, total)
        layer = read_exact(network, index)
        names = [name for layer_index, name in ranks if layer_index == index]
        moments = stream.run(index, {(TAPS[name], "second") for name in names})
        changed: dict[str, Any] = {}
        for name in names:
            assert moments is not None  # there are names
            p, rank = layer.matrices()[name], ranks[index, name]
            up, _, down = whitened_svd(p.weight, moments.second(TAPS[name]))
            up, down = (t.to(p.weight.dtype) for t in balanced(up[:, :rank], down[:rank]))
            pair = LowRank(down, up, p.bias)
            if isinstance(p, LowRank):
                changed[name] = pair
            else:
                pairs[index, name] = pair
        write_layer(network, layer.with_matrices(**changed))
    progress("order", total, total)
    return pairs
