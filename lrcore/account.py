"""What a model weighs and costs, beside the dense model that it was made of; and the one formula
for FLOPs.

The formula reads `LayerWork`: of a loaded model from its layers (`models.counting`), of a plan from
the costs of its slots (`plan.RankPlan.work`), so that both give the same number.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class LayerWork:
    """The multiply-adds of one decoder layer for one token.

    weights: with weights, once per token. Every number of a matrix counts once: biases, orders and
    the places of sparse entries multiply nothing, identity blocks and zeros are not stored, a
    `down` that projections share counts once, quantised weights count as numbers; the up-projection
    of values whose latents are cached counts for every query head. The residual
    matrices of a sliced layer and the matrices of a rotary channel are among them.

    cached: per token in the cache: scores, widened by a rotary channel, weighted values or latents
    of values, and the raising of latents of keys.
    """

    weights: int
    cached: int


def flops_per_token(layers: Iterable[LayerWork], head: int, context: int) -> int:
    """FLOPs of one decoded token with `context` tokens in the cache, a multiply-add counted as two.

    2 (head + sum over layers of weights + context cached)

    head: numbers in the output embedding. Norms, activations, biases and rotations, all linear in
    the width, are left out, and so are the token's product with itself (one in `context`), routers
    and the experts that every token passes. Of routed experts those count that a token is routed
    to. A layer that keeps only a window of the cache counts with all of its `context` tokens.
    """
    work = list(layers)
    products = sum(one.weights for one in work) + context * sum(one.cached for one in work)
    return 2 * (head + products)


@dataclass(frozen=True)
class ModelAccount:
    """What one model weighs and costs.

    parameters: numbers, tied ones once. decoder_parameters: those of the decoder projections and of
    residual matrices. bytes: of the weights as they are stored. kv_bytes_per_token: of the cache.
    flops_per_token: see the function of that name. latency: seconds per token of the decoder layers
    in a forward pass over one window; None where they were not measured.
    """

    parameters: int
    decoder_parameters: int
    bytes: float
    kv_bytes_per_token: int
    flops_per_token: int
    latency: float | None = None

    @property
    def megabytes(self) -> float:
        return self.bytes / 1e6

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the figures by name, latency only where it was measured."""
        figures = {name: getattr(self, name) for name in FIGURES}
        return figures if self.latency is None else figures | {"latency": self.latency}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> "ModelAccount":
        """What `to_dict` gave, under names that may begin with a prefix.

        Raises KeyError where a figure is missing.
        """
        own = {name: values[prefix + name] for name in FIGURES if name != "megabytes"}
        own["bytes"] = values[f"{prefix}megabytes"] * 1e6
        return cls(**own, latency=values.get(f"{prefix}latency"))


FIGURES = (
    "parameters",
    "decoder_parameters",
    "megabytes",
    "kv_bytes_per_token",
    "flops_per_token",
)  # of an account in JSON, in this order


@dataclass(frozen=True)
class Planned:
    """What a rank plan says of itself besides sizes and costs.

    requested: share to remove. energy_kept: mean over the slots, in [0, 1]. The temperatures are
    None where the policy reads none, predicted_perplexity where no slot was probed, or where it no
    longer holds; 90 % of the actual values should lie from predicted_low to predicted_high, which
    are None where nothing says how sure it is. predicted_held_out: whether it was predicted on
    windows that the moments have not seen; None where that is not known.
    divergence, uniform_divergence: mean KL divergence from the dense model (nats/token, before any
    refit) under the policy's ranks and under uniform ones; given_uniform: whether uniform ranks
    were given in the place of the policy's, which hurt. None where that was not measured.
    """

    requested: float
    energy_kept: float
    temperature: float | None = None
    suggested_temperature: float | None = None
    predicted_perplexity: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None
    predicted_held_out: bool | None = None
    divergence: float | None = None
    uniform_divergence: float | None = None
    given_uniform: bool | None = None

    def not_given(self, policy: str) -> str:
        """One sentence where uniform ranks were given in the place of the policy's, else ""."""
        if not self.given_uniform:
            return ""
        return (
            f"The ranks are uniform: those of policy '{policy}' are further from the dense model "
            f"on windows of the calibration text ({self.divergence:.4g} against "
            f"{self.uniform_divergence:.4g} nats/token)."
        )


# the fields that may be None, as `SizeAndCost.to_dict` names them
OF_PLANS = (
    "temperature",
    "suggested_temperature",
    "predicted_perplexity",
    "predicted_low",
    "predicted_high",
    "predicted_held_out",
    "divergence",
    "uniform_divergence",
    "given_uniform",
)


@dataclass(frozen=True)
class SizeAndCost:
    """A model beside the dense one that it was made of.

    budget: which share counts as achieved: "params" of the decoder parameters, "total" of all, "kv"
    of the cache, "flops" of the FLOPs per token, "latency" of the time of the decoder layers.
    planned: None where no ranks made the model. bits: of quantised weights, else None.
    """

    model: ModelAccount
    dense: ModelAccount
    budget: str = "params"
    planned: Planned | None = None
    bits: int | None = None

    @property
    def removed_params(self) -> float:
        """Share of the decoder parameters that is gone; below 0 where there are more."""
        dense = self.dense.decoder_parameters
        return (dense - self.model.decoder_parameters) / dense

    @property
    def removed_total(self) -> float:
        """Share of all parameters that is gone."""
        return (self.dense.parameters - self.model.parameters) / self.dense.parameters

    @property
    def removed_kv(self) -> float:
        """Share of the KV cache that is gone; 0 where the dense model has none."""
        dense = self.dense.kv_bytes_per_token
        return 1 - self.model.kv_bytes_per_token / dense if dense else 0.0

    @property
    def removed_flops(self) -> float:
        """Share of the FLOPs per token that is gone; below 0 where there are more."""
        return 1 - self.model.flops_per_token / self.dense.flops_per_token

    @property
    def removed_latency(self) -> float:
        """Share of the decoder layers' time that is gone; NaN where it was not measured."""
        own, dense = self.model.latency, self.dense.latency
        return math.nan if own is None or dense is None else 1 - own / dense

    @property
    def achieved(self) -> float:
        """The share removed that the budget counts."""
        share: float = getattr(self, f"removed_{self.budget}")
        return share

    @property
    def requested(self) -> float | None:
        """The share that was to be removed; None where no ranks made the model."""
        return None if self.planned is None else self.planned.requested

    def without_prediction(self) -> "SizeAndCost":
        """A copy whose predicted perplexity is None: the weights have changed since."""
        if self.planned is None:
            return self
        planned = replace(
            self.planned,
            predicted_perplexity=None,
            predicted_low=None,
            predicted_high=None,
            predicted_held_out=None,
        )
        return replace(self, planned=planned)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able and flat: each figure beside that of the dense model, `dense_*`; what no plan
        and no quantisation said is left out.
        """
        own, dense = self.model.to_dict(), self.dense.to_dict()
        values: dict[str, Any] = {}
        for name in dict.fromkeys([*own, *dense]):
            values |= {name: own[name]} if name in own else {}
            values |= {f"dense_{name}": dense[name]} if name in dense else {}
        shares = ("removed_params", "removed_total", "removed_kv", "removed_flops")
        values |= {name: getattr(self, name) for name in shares}
        values |= {} if own.get("latency") is None else {"removed_latency": self.removed_latency}
        plan = self.planned
        values |= {} if plan is None else {"energy_kept": plan.energy_kept}
        values |= {"budget": self.budget}
        values |= {} if plan is None else {"requested": plan.requested}
        values |= {"achieved": self.achieved}
        if plan is not None:
            values |= {name: getattr(plan, name) for name in OF_PLANS}
        return values if self.bits is None else values | {"bits": self.bits}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SizeAndCost":
        """What `to_dict` gave, or an earlier version, whose `requested` was `asked`.

        Raises KeyError where a figure is missing.
        """
        requested = values.get("requested", values.get("asked"))
        planned = None
        if requested is not None:
            rest = {name: values.get(name) for name in OF_PLANS}
            planned = Planned(requested, values["energy_kept"], **rest)
        return cls(
            ModelAccount.from_dict(values),
            ModelAccount.from_dict(values, "dense_"),
            values["budget"],
            planned,
            values.get("bits"),
        )
