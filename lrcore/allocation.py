"""Rank allocation: how a budget is shared among the slots. One function per policy, one row per policy in `POLICIES`.

A policy sees loss curves and prices, never a model. It returns targets, the share of its price that each slot should keep;
`round_to_ranks` turns them into whole ranks that fit the budget. Milliseconds, so a slider may call it at every move.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .errors import InputError, unknown
from .spectra import Cost, Slot, Spectrum

Spectra = Mapping[Slot, Spectrum]
Targets = dict[Slot, float]
CAP = 0.95  # largest sparsity a layer may get; MoDeGPT keeps a few columns everywhere, since a block at rank 0 breaks the model
RULE_OF_THUMB = 0.8  # largest sparsity at the suggested temperature


@dataclass(frozen=True)
class Budget:
    """What a plan may cost. kind: "params", "total" or "kv". limit: the most that all slots together may cost, in parameters or in
    cached numbers per token. dense: what they cost untouched."""

    kind: str
    limit: int
    dense: int

    def price(self, cost: Cost, rank: int) -> int:
        return cost.kv(rank) if self.kind == "kv" else cost.parameters(rank)

    def counts(self, cost: Cost) -> bool:
        """Whether the rank of a slot changes what this budget counts."""
        return self.kind != "kv" or cost.kv_per_rank > 0

    @property
    def keep(self) -> float:
        return self.limit / self.dense


def make_budget(kind: str, ratio: float, spectra: Spectra, decoder_linear: int, total: int) -> Budget:
    """The budget that removes `ratio` of what `kind` names. decoder_linear and total are the dense model's parameter counts.

    Raises InputError where the method cannot shrink what is asked for, or not by that much.
    """
    whole = {"params": decoder_linear, "total": total}
    counted = [s.cost for s in spectra.values() if kind != "kv" or s.cost.kv_per_rank > 0]
    if not counted:
        raise InputError("This method leaves the KV cache as it is. For budget 'kv' choose one that narrows heads, such as a3 or modegpt.")
    dense = sum(cost.kv(cost.full) if kind == "kv" else cost.parameters(cost.full) for cost in counted)
    least = sum(cost.kv(cost.step) if kind == "kv" else cost.parameters(cost.step) for cost in counted)
    base = whole.get(kind, sum(s.cost.kv_dense for s in spectra.values()))
    limit = dense - math.ceil(ratio * base - 1e-9)
    if limit < least:
        most = (dense - least) / base
        raise InputError(f"A ratio of {ratio:g} of '{kind}' is more than this method can remove here; at most {most:.3f}. Lower the ratio.")
    return Budget(kind, limit, dense)


# ---- policies --------------------------------------------------------------------------------------------------------------------


def uniform(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> Targets:
    """Every slot keeps the same share of its price."""
    return dict.fromkeys(spectra, budget.keep)


def softmax(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> Targets:
    """MoDeGPT eq. 11: layer sparsity `phi = L phi_avg softmax(-s / eps)`, s the Block Influence; clipped and redistributed to the mean.

    temperature eps > 0: small is uneven, large is even. All slots of a layer share its sparsity.
    """
    layers = sorted({layer for layer, _ in spectra})
    sparsity = softmax_sparsity([influence[layer] for layer in layers], 1 - budget.keep, temperature)
    by_layer = dict(zip(layers, sparsity, strict=True))
    return {slot: 1 - by_layer[slot[0]] for slot in spectra}


def softmax_sparsity(influence: list[float], mean: float, temperature: float, cap: float = CAP) -> list[float]:
    """Sparsities in [0, cap] with the given mean (in [0, 1)); entries over the cap are clipped and their excess shared by the others."""
    cap = max(cap, mean)
    weights = torch.softmax(-torch.tensor(influence, dtype=torch.float64) / temperature, 0)
    free = torch.ones(len(influence), dtype=torch.bool)
    phi = torch.zeros(len(influence), dtype=torch.float64)
    for _ in influence:
        left = mean * len(influence) - cap * int((~free).sum())
        share = weights[free]
        # a tiny temperature can underflow every remaining weight to zero: then what is left is shared evenly
        phi[free] = left * (share / share.sum() if float(share.sum()) > 0 else torch.full_like(share, 1 / len(share)))
        phi[~free] = cap
        over = free & (phi > cap + 1e-12)
        if not bool(over.any()):
            break
        free &= ~over
    return phi.clamp(0, cap).tolist()


def suggested_temperature(influence: list[float], mean: float) -> float:
    """The temperature at which the most compressed layer loses RULE_OF_THUMB (or the mean, if larger); by bisection on a log scale."""
    goal = max(RULE_OF_THUMB, mean)
    low, high = 1e-4, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if max(softmax_sparsity(influence, mean, middle, cap=1.0)) > goal else (low, middle)
    return high


def waterfill(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> Targets:
    """CARE's water-filling: pool the singular values of one component over all layers and keep the largest that the budget holds.

    Values compare only within a component (scores, attention outputs and MLP outputs have units of their own), so each component
    keeps the overall share. Greedy is optimal here: kept sets are nested and every step of a component costs the same.
    """
    targets: Targets = {}
    for component in {slot[1] for slot in spectra}:
        pool = {slot: s for slot, s in spectra.items() if slot[1] == component}
        dense = sum(budget.price(s.cost, s.cost.full) for s in pool.values())
        limit = dense * budget.keep
        ranks = fill_by_value(pool, limit, budget)
        targets |= {slot: budget.price(s.cost, ranks[slot]) / budget.price(s.cost, s.cost.full) for slot, s in pool.items()}
    return targets


def fill_by_value(pool: Spectra, limit: float, budget: Budget) -> dict[Slot, int]:
    """From one step each, take the step of largest value next, again and again, while it fits. Ties go to the later slot."""
    ranks = {slot: s.cost.step for slot, s in pool.items()}
    left = limit - sum(budget.price(s.cost, s.cost.step) for s in pool.values())
    curves = {slot: torch.cummin(s.values, 0).values.tolist() for slot, s in pool.items()}  # nested: a step waits for those before it
    queue: list[tuple] = []

    def push(slot: Slot) -> None:
        cost = pool[slot].cost
        following = next_rank(cost, ranks[slot])
        if following is not None:
            price = budget.price(cost, following) - budget.price(cost, ranks[slot])
            heapq.heappush(queue, (-curves[slot][ranks[slot] // cost.step], -slot[0], slot, following, price))

    for slot in pool:
        push(slot)
    while queue:
        _, _, slot, following, price = heapq.heappop(queue)
        if price <= left:
            left -= price
            ranks[slot] = following
            push(slot)
    return ranks


def probed(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> Targets:
    """Probed marginal loss (ours): the ranks whose predicted rises in token loss, `Spectrum.nats`, have the least sum within the budget.

    One multiplier, by bisection: every slot takes the rank of least `nats + multiplier * price`; what is left over goes, step by step, to
    the slot that gains most per price. Raises InputError where a slot was not probed.
    """
    if any(s.nats is None for s in spectra.values()):
        raise InputError("Policy 'probed' needs probed slots: call lrcore.probe on the factorisation first (some short evaluations).")
    prices = {slot: torch.tensor([budget.price(s.cost, r) for r in s.cost.ranks()], dtype=torch.float64) for slot, s in spectra.items()}

    def choose(multiplier: float) -> dict[Slot, int]:
        return {slot: int(torch.argmin(s.nats + multiplier * prices[slot])) for slot, s in spectra.items()}

    def spent(choice: dict[Slot, int]) -> float:
        return sum(float(prices[slot][i]) for slot, i in choice.items())

    low, high = 1e-15, 1e6
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(choose(middle)) > budget.limit else (low, middle)
    choice = choose(high)
    _spend_rest(choice, spectra, prices, budget.limit - spent(choice))
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in choice.items()}


def _spend_rest(choice: dict[Slot, int], spectra: Spectra, prices: dict[Slot, torch.Tensor], left: float) -> None:
    """Raise one slot after another by a step, the one with most nats per price first, while anything fits."""
    queue: list[tuple] = []

    def push(slot: Slot) -> None:
        i, nats = choice[slot], spectra[slot].nats
        if i + 1 < len(nats):
            price = float(prices[slot][i + 1] - prices[slot][i])
            heapq.heappush(queue, (-float(nats[i] - nats[i + 1]) / price, slot, price))

    for slot in spectra:
        push(slot)
    while queue:
        _, slot, price = heapq.heappop(queue)
        if price <= left:
            left -= price
            choice[slot] += 1
            push(slot)


@dataclass(frozen=True)
class Policy:
    """A row of the table. temperature: whether the policy reads one. probed: whether it needs probed slots."""

    name: str
    summary: str
    targets: Callable[[Spectra, Budget, float, list[float]], Targets]
    temperature: bool = False
    probed: bool = False

    def describe(self) -> dict:
        return {"name": self.name, "summary": self.summary, "temperature": self.temperature, "probed": self.probed}


POLICIES = {
    row.name: row
    for row in (
        Policy("uniform", "Every layer and component keeps the same share.", uniform),
        Policy("softmax", "Layers that change the residual stream least lose most (MoDeGPT eq. 11).", softmax, temperature=True),
        Policy("waterfill", "The largest singular values of each component, pooled over the layers, are kept (CARE).", waterfill),
        Policy("probed", "Least predicted rise of the token loss, from a few measured probes per slot (ours).", probed, probed=True),
    )
}


def find_policy(name: str) -> Policy:
    """The row of a policy. Raises InputError with the nearest name for an unknown one."""
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    return POLICIES[name]


# ---- whole ranks -------------------------------------------------------------------------------------------------------------------


def next_rank(cost: Cost, rank: int) -> int | None:
    """The next rank that makes sense above `rank`, or None at full."""
    if rank >= cost.full:
        return None
    return rank + cost.step if rank + cost.step <= cost.cap else cost.full


def rank_for(cost: Cost, target: float, budget: Budget, nearest: bool) -> int:
    """The largest rank whose price stays within the share `target` of the dense price, or the nearest to it in columns."""
    dense = budget.price(cost, cost.full)
    if target >= 1 - 1e-12:
        return cost.full
    fixed, per_rank = (cost.kv_fixed, cost.kv_per_rank) if budget.kind == "kv" else (cost.fixed, cost.per_rank)
    steps = (target * dense - fixed) / (per_rank * cost.step)
    rank = (math.floor(steps + 0.5) if nearest else math.floor(steps + 1e-9)) * cost.step
    return cost.full if rank >= cost.full else max(cost.step, min(rank, cost.cap))


def round_to_ranks(spectra: Spectra, targets: Targets, budget: Budget, nearest: bool = False) -> dict[Slot, int]:
    """Whole ranks for the targets. Rounded down, then one more step at a time to the slot furthest below its target while the budget holds.

    The result never exceeds the budget and no further step fits into it. `nearest` only rounds: it may exceed the budget.
    """
    ranks = {slot: rank_for(s.cost, targets[slot], budget, nearest) for slot, s in spectra.items()}
    if nearest:
        return ranks
    _shrink(spectra, ranks, budget)
    left = budget.limit - sum(budget.price(s.cost, ranks[slot]) for slot, s in spectra.items())
    queue: list[tuple] = []

    def push(slot: Slot) -> None:
        cost = spectra[slot].cost
        following = next_rank(cost, ranks[slot])
        if following is None:
            return
        now, then, dense = (budget.price(cost, rank) for rank in (ranks[slot], following, cost.full))
        heapq.heappush(queue, (-(targets[slot] * dense - now) / (then - now), slot, following, then - now))

    for slot in spectra:
        push(slot)
    while queue:
        _, slot, following, price = heapq.heappop(queue)
        if price <= left:
            left -= price
            ranks[slot] = following
            push(slot)
    return ranks


def _shrink(spectra: Spectra, ranks: dict[Slot, int], budget: Budget) -> None:
    """Take steps back where least ranks or clipped targets put the plan over its budget, from the slot furthest above least."""
    over = sum(budget.price(s.cost, ranks[slot]) for slot, s in spectra.items()) - budget.limit
    while over > 0:
        slot = max((s for s in spectra if ranks[s] > spectra[s].cost.step), key=lambda s: ranks[s] / spectra[s].cost.full)
        cost = spectra[slot].cost
        lower = ranks[slot] - cost.step if ranks[slot] < cost.full else cost.cap
        over -= budget.price(cost, ranks[slot]) - budget.price(cost, lower)
        ranks[slot] = lower


def plan_ranks(
    policy: str,
    spectra: Spectra,
    budget: Budget,
    temperature: float,
    influence: list[float],
    fixed: Mapping[Slot, int] | None = None,
    nearest: bool = False,
) -> dict[Slot, int]:
    """Ranks of all slots: those in `fixed` as given, those the budget does not count at full, the rest by the policy.

    Raises InputError where the fixed ranks leave too little for the others.
    """
    row = find_policy(policy)
    ranks = {slot: s.cost.full for slot, s in spectra.items()} | dict(fixed or {})
    free = {slot: s for slot, s in spectra.items() if budget.counts(s.cost) and slot not in (fixed or {})}
    spent = sum(budget.price(spectra[slot].cost, rank) for slot, rank in (fixed or {}).items() if budget.counts(spectra[slot].cost))
    dense = sum(budget.price(s.cost, s.cost.full) for s in free.values())
    least = sum(budget.price(s.cost, s.cost.step) for s in free.values())
    limit = min(budget.limit - spent, dense)
    if limit < least:
        raise InputError("The ranks set by hand leave nothing for the other slots. Lower some of them, or lower the ratio.")
    if free:
        rest = Budget(budget.kind, limit, dense)
        ranks |= round_to_ranks(free, row.targets(free, rest, temperature, influence), rest, nearest)
    return ranks
