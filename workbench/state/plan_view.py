"""The values that the Allocation tab displays for a recipe."""

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import lrcore
from lrcore.compression.slower_decoding import slower_decoding
from lrcore.compression.solve.distill import before_distillation
from lrcore.layers.spectra import Slot
from lrcore.ranks.plan import RankPlan

from .. import words
from ..base import numbers
from .keys import BYTES, without_measurements
from .store import MissingEvidence, Store

# Share of the full rank below which a component is nearly removed. Policies that measure nothing
# removed an MLP of SmolLM2-135M whose removal ruins the model.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class PlanView:
    """Everything that the Allocation tab redraws when a slider moves.

    `plan` and `uniform` are None if `error` is set or if the factors of the method are missing.

    Attributes:
        recipe: The recipe of the form.
        displayed_recipe: The recipe of `plan`. It differs from `recipe` while the policy of
            `recipe` waits for measurements: the plan of the previous policy stays on the page.
        plan: The rank plan of `displayed_recipe`.
        uniform: The plan with uniform ranks at the same budget.
        pinned_recipe: The recipe of the plan that the browser pinned, if both plans are for the
            same model and calibration text.
        pinned: The plan of `pinned_recipe`.
        size: Size and cost of the compressed model, as `RankPlan.summary` returns them.
        live_key: The key of the measured perplexity; "" while the policy waits for measurements.
        missing_evidence: The measurements that the policy waits for.
        caption: The source of the figure: method, policy, budget, model and calibration text.
        messages: Sentences below the figure: the comparison with the other plan, then the status
            of the plan and the cost of its target. Messages may be empty.
        error: Why the budget cannot be met.
    """

    recipe: lrcore.Recipe
    displayed_recipe: lrcore.Recipe
    plan: RankPlan | None = None
    uniform: RankPlan | None = None
    pinned_recipe: lrcore.Recipe | None = None
    pinned: RankPlan | None = None
    size: dict[str, Any] = field(default_factory=dict)
    live_key: str = ""
    missing_evidence: MissingEvidence | None = None
    caption: str = ""
    messages: tuple[str, ...] = ()
    error: str = ""

    @property
    def reference(self) -> RankPlan | None:
        """The plan that is drawn behind `plan`: the pinned plan, or uniform ranks."""
        return self.pinned if self.is_pinned_drawn else self.uniform

    @property
    def is_pinned_drawn(self) -> bool:
        """Whether the pinned plan has ranks for the same slots, so that bars can be compared."""
        return (
            self.plan is not None
            and self.pinned is not None
            and have_same_slots(self.plan, self.pinned)
        )


def plan_view(store: Store, recipe: lrcore.Recipe, browser: Hashable = None) -> PlanView:
    """Return the values to display for a recipe, from cached factors.

    Nothing is measured or decomposed, and no job is queued: this takes milliseconds. `browser`
    selects the pinned plan and the previous policy.
    """
    missing = store.missing_evidence(recipe)
    displayed = recipe if missing is None else previous_recipe(store, recipe, browser)
    try:
        plan, uniform = store.plan(displayed), store.uniform_plan(displayed)
    except lrcore.InputError as error:
        return PlanView(recipe, displayed, missing_evidence=missing, error=str(error))
    if plan is None or uniform is None:
        return PlanView(recipe, displayed, missing_evidence=missing)
    size, caption = plan.summary(), words.allocation.plan_caption(displayed, plan.budget)
    if missing is not None:
        return PlanView(
            recipe,
            displayed,
            plan,
            uniform,
            size=size,
            missing_evidence=missing,
            caption=caption,
        )
    pinned_recipe = store.browsers.comparable_pin(browser, recipe)
    pinned = None if pinned_recipe is None else store.plan(pinned_recipe)
    if pinned_recipe is None or pinned is None:
        pinned_recipe, comparison = None, uniform_message(plan, uniform)
        comparison += influence_message(store, recipe, plan)
    else:
        comparison = pinned_message(plan, pinned_recipe, pinned)
    return PlanView(
        recipe,
        displayed,
        plan,
        uniform,
        pinned_recipe,
        pinned,
        size,
        store.live_key(recipe),
        caption=caption,
        messages=(comparison, status_message(store, recipe, plan)),
    )


def previous_recipe(store: Store, recipe: lrcore.Recipe, browser: Hashable) -> lrcore.Recipe:
    """Return the recipe with the policy that the browser displayed last, or with uniform ranks."""
    previous = store.browsers.previous_recipe(browser, recipe)
    return previous if store.peek_factors(previous) is not None else without_measurements(recipe)


def have_same_slots(plan: RankPlan, other: RankPlan) -> bool:
    """Return True if two plans have ranks for the same slots."""
    return plan.ranks.keys() == other.ranks.keys()


def uniform_message(plan: RankPlan, uniform: RankPlan) -> str:
    """Return a sentence about the slots with the highest and the lowest share of their rank.

    For a budget of bytes, it is about the bits and the number of slots below full rank.
    """
    if plan.budget == BYTES:
        return bits_message(plan)
    if plan.ranks == uniform.ranks:
        is_time = plan.budget == "latency"
        return words.allocation.UNIFORM_TIMES if is_time else words.allocation.UNIFORM_BARS
    shares = rank_shares(plan)
    highest, lowest = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    sentence = words.allocation.BARS.format(
        *highest, numbers.percent(shares[highest], 0), *lowest, numbers.percent(shares[lowest], 0)
    )
    is_measured = plan.by_probes or plan.against_uniform is not None
    is_cut = shares[lowest] < LEAST_SHARE and not is_measured
    return f"{sentence} {words.allocation.CUT}" if is_cut else sentence


def rank_shares(plan: RankPlan) -> dict[Slot, float]:
    """Return the share of its full rank that each slot keeps, in [0, 1]."""
    return {slot: rank / plan.spectra[slot].cost.full for slot, rank in plan.ranks.items()}


def influence_message(store: Store, recipe: lrcore.Recipe, plan: RankPlan) -> str:
    """Return a sentence, after a space, about why layers differ under policy softmax.

    It has the Block Influence of the layers with the highest and the lowest share; "" for other
    policies, and if ranks were set manually.
    """
    factors = store.peek_factors(recipe)
    if recipe.policy != "softmax" or recipe.rank_overrides or factors is None:
        return ""
    shares, influences = rank_shares(plan), factors.evidence.influence["block"]
    layers = [choose(shares, key=shares.__getitem__)[0] for choose in (max, min)]
    values = [(layer, numbers.influence(influences[layer])) for layer in layers]
    return " " + words.allocation.INFLUENCES.format(*values[0], *values[1])


def bits_message(plan: RankPlan) -> str:
    """Return a sentence about the number of slots by bits, and of those below full rank."""
    counts = Counter(plan.bits.get(slot, 0) for slot in plan.ranks)
    # not quantized first, then from many to few bits
    order = sorted(counts, key=lambda bits: -bits or -math.inf)
    text = words.allocation
    listed = ", ".join(
        (text.COMPONENTS_IN if bits else text.COMPONENTS_PLAIN).format(counts[bits], bits)
        for bits in order
    )
    below = sum(rank < plan.spectra[slot].cost.full for slot, rank in plan.ranks.items())
    return text.BITS_PLAN.format(listed, below, len(plan.ranks))


def pinned_message(plan: RankPlan, pinned_recipe: lrcore.Recipe, pinned: RankPlan) -> str:
    """Return a sentence about the largest changes of a rank against the pinned plan."""
    name = plan_name(pinned_recipe)
    if not have_same_slots(plan, pinned):
        return words.allocation.OTHER_SLOTS.format(plan=name)
    change = {slot: rank - pinned.ranks[slot] for slot, rank in plan.ranks.items()}
    if not any(change.values()):
        changed = sum(plan.bits.get(slot) != pinned.bits.get(slot) for slot in change)
        same = words.allocation.OTHER_BITS if changed else words.allocation.SAME_RANKS
        return same.format(changed, len(change))
    highest, lowest = max(change, key=change.__getitem__), min(change, key=change.__getitem__)
    ends = []
    if change[highest] > 0:
        ends.append(words.allocation.RANK_GAIN.format(*highest, numbers.signed(change[highest])))
    if change[lowest] < 0:
        ends.append(words.allocation.RANK_LOSS.format(*lowest, numbers.signed(change[lowest])))
    return words.allocation.PINNED_BARS.format(plan=name, ends=", ".join(ends))


def plan_name(recipe: lrcore.Recipe) -> str:
    """Return the name of a plan: method, policy and ratio."""
    return words.allocation.PINNED_PLAN.format(
        method=recipe.method, policy=recipe.policy, ratio=numbers.percent(recipe.ratio)
    )


def status_message(store: Store, recipe: lrcore.Recipe, plan: RankPlan) -> str:
    """Return sentences: why compression may not use these ranks, the cost of the target, why
    decoding takes longer, and what the perplexities of the plan do not include.
    """
    status = words.allocation.plan_status(plan, recipe.policy, store.is_draft(recipe))
    sentences = status, target_message(store, recipe, plan), slower_decoding(recipe)
    return " ".join(filter(None, (*sentences, distillation_message(store, recipe))))


def distillation_message(store: Store, recipe: lrcore.Recipe) -> str:
    """Return a sentence about a distillation that the perplexities of the plan do not include."""
    model = store.peek_dense(recipe)
    is_distilled = model is not None and before_distillation(recipe, model) != recipe
    return words.allocation.DISTILLS if is_distilled else ""


def target_message(store: Store, recipe: lrcore.Recipe, plan: RankPlan) -> str:
    """Return the predicted perplexity with and without the limits of the target.

    Returns how to get a prediction if there is none, and "" if the target has no limits.
    """
    unlimited = recipe.with_(target=lrcore.Recipe().target)
    if recipe.target == unlimited.target:
        return ""
    sentence = words.allocation.describe_target(recipe.target)
    try:
        unlimited_plan = store.plan(unlimited)
    except lrcore.InputError:  # ranks set manually
        return sentence
    if unlimited_plan is None or unlimited_plan.probes is None or plan.probes is None:
        return f"{sentence} {words.allocation.TARGET_COST_UNKNOWN}"
    if unlimited_plan.predicted is None or plan.predicted is None:
        return f"{sentence} {words.allocation.TARGET_COST_UNPREDICTED}"
    perplexities = plan.predicted.perplexity, unlimited_plan.predicted.perplexity
    change = numbers.relative_change(perplexities[0] / perplexities[1] - 1)
    costs = words.allocation.TARGET_COST.format(*map(numbers.perplexity, perplexities), change)
    return f"{sentence} {costs}"
