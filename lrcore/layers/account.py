"""Sizes and costs of compressed models, and the formula for FLOPs.

`flops_per_token` sums `LayerWork`, which `models.model_size` derives from the layers of a loaded
model and `RankPlan.work` from the costs of a plan's slots. Both give the same number.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class LayerWork:
    """The multiply-adds of a decoder layer per token.

    weights: products with weights, once per token. Each stored number of a matrix counts once, and
    a quantized weight counts as one number. Biases, permutations and the indices of sparse entries
    do not count, because they multiply nothing. Identity blocks and zeros are not stored. A `down`
    matrix that several projections share counts once. If latents of values are cached, the
    up-projection of the values counts once per query head. The residual matrices of a sliced layer
    and the matrices of a rotary channel are included.

    cached: products per token in the cache: scores (widened by a rotary channel), weighted values
    or latents of values, and the expansion of latents of keys.
    """

    weights: int
    cached: int


def flops_per_token(layers: Iterable[LayerWork], head: int, context: int) -> int:
    """Return the FLOPs of a decoded token with `context` tokens in the cache. A multiply-add
    counts as two FLOPs.

    2 (head + sum over layers of weights + context cached)

    head: numbers in the output embedding. Terms that are linear in the width are left out (norms,
    activations, biases, rotations), and so are routers, shared experts and the product of the token
    with itself. Routed experts count for the experts that a token is routed to. A layer with a
    sliding window counts with all `context` tokens.
    """
    work = list(layers)
    products = sum(layer.weights for layer in work) + context * sum(layer.cached for layer in work)
    return 2 * (head + products)


@dataclass(frozen=True)
class ModelAccount:
    """The size and cost of a model.

    parameters: number of parameters, tied parameters once. decoder_parameters: parameters of the
    decoder projections and residual matrices. bytes: size of the stored weights.
    kv_bytes_per_token: size of the KV cache. flops_per_token: see the function of that name.
    latency: seconds per token of the decoder layers in a forward pass over a window; None if not
    measured. state_bytes: size of the cached states of linear attention, Mamba and convolutions,
    per sequence of any length.
    """

    parameters: int
    decoder_parameters: int
    bytes: float
    kv_bytes_per_token: int
    flops_per_token: int
    latency: float | None = None
    state_bytes: int = 0

    @property
    def megabytes(self) -> float:
        return self.bytes / 1e6

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-able figures by name; latency is included only if it was measured, and
        state_bytes only if the model has states.
        """
        figures = {name: getattr(self, name) for name in ACCOUNT_FIELDS}
        figures |= {"state_bytes": self.state_bytes} if self.state_bytes else {}
        return figures if self.latency is None else figures | {"latency": self.latency}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> "ModelAccount":
        """Return the account that `to_dict` wrote. `prefix` precedes every name in `values`.

        Raises KeyError if a figure is missing.
        """
        fields = {name: values[prefix + name] for name in ACCOUNT_FIELDS if name != "megabytes"}
        fields["bytes"] = values[f"{prefix}megabytes"] * 1e6
        latency, states = values.get(f"{prefix}latency"), values.get(f"{prefix}state_bytes", 0)
        return cls(**fields, latency=latency, state_bytes=states)


ACCOUNT_FIELDS = (
    "parameters",
    "decoder_parameters",
    "megabytes",
    "kv_bytes_per_token",
    "flops_per_token",
)  # figures of an account in JSON, in this order


@dataclass(frozen=True)
class PlanSummary:
    """The figures of a rank plan besides sizes and costs.

    requested: share to remove. energy_kept: mean over the slots, in [0, 1]. temperature,
    suggested_temperature: None for policies without a temperature.
    predicted_perplexity: None if no slot was probed, if the weights changed afterwards, or if the
    prediction is not trustworthy. 90 % of the actual values should lie between predicted_low and
    predicted_high; these are None if no joint measurement gives an uncertainty.
    predicted_held_out: True if the slots were probed on windows that the moments have not seen;
    None if no slot was probed.
    divergence, uniform_divergence: mean KL divergence from the dense model (nats/token, before any
    refit) under the policy's ranks and under uniform ranks; None if not measured. given_uniform:
    True if the plan has uniform ranks because the policy's ranks were worse.
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

    def uniform_notice(self, policy: str) -> str:
        """Return a sentence if uniform ranks replaced those of the policy, else ""."""
        if not self.given_uniform:
            return ""
        return (
            f"The ranks are uniform: those of policy '{policy}' are further from the dense model "
            f"on windows of the calibration text ({self.divergence:.4g} against "
            f"{self.uniform_divergence:.4g} nats/token)."
        )


# fields of `PlanSummary` that may be None, under their names in `SizeAndCost.to_dict`
PLAN_FIELDS = (
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
    """The account of a model, compared with the dense original.

    budget: the quantity that `achieved` refers to: "params" (decoder parameters), "all_params" (all
    parameters), "kv" (cache), "both" (the smaller of the shares of "params" and "kv"), "flops"
    (FLOPs per token), "latency" (time of the decoder layers) or "bytes" (size of the stored
    weights).
    planned: None if the model was not made from a rank plan. bits: of quantized weights, else None.
    """

    model: ModelAccount
    dense: ModelAccount
    budget: str = "params"
    planned: PlanSummary | None = None
    bits: int | None = None

    @property
    def removed_params(self) -> float:
        """Share of the decoder parameters that was removed; negative if the model has more."""
        dense = self.dense.decoder_parameters
        return (dense - self.model.decoder_parameters) / dense

    @property
    def removed_all_params(self) -> float:
        """Share of all parameters that was removed."""
        return (self.dense.parameters - self.model.parameters) / self.dense.parameters

    @property
    def removed_kv(self) -> float:
        """Share of the KV cache that was removed; 0 if the dense model has no cache."""
        dense = self.dense.kv_bytes_per_token
        return 1 - self.model.kv_bytes_per_token / dense if dense else 0.0

    @property
    def removed_flops(self) -> float:
        """Share of the FLOPs per token that was removed; negative if the model needs more."""
        return 1 - self.model.flops_per_token / self.dense.flops_per_token

    @property
    def removed_latency(self) -> float:
        """Share of the decoder layers' time that was removed; NaN if not measured."""
        model, dense = self.model.latency, self.dense.latency
        return math.nan if model is None or dense is None else 1 - model / dense

    @property
    def removed_bytes(self) -> float:
        """Share of the size of the stored weights that was removed."""
        return 1 - self.model.bytes / self.dense.bytes

    @property
    def achieved(self) -> float:
        """Removed share of the quantity that the budget counts; the smaller of two shares for
        "both".
        """
        if self.budget == "both":
            return min(self.removed_params, self.removed_kv)
        share: float = getattr(self, f"removed_{self.budget}")
        return share

    @property
    def requested(self) -> float | None:
        """Share to remove; None if the model was not made from a rank plan."""
        return None if self.planned is None else self.planned.requested

    def without_prediction(self) -> "SizeAndCost":
        """Return a copy without a predicted perplexity, for a model whose weights changed."""
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
        """Return a flat JSON-able dictionary.

        Figures of the dense model have the prefix `dense_`. Fields of the plan and of quantization
        are left out if the model has neither.
        """
        model, dense = self.model.to_dict(), self.dense.to_dict()
        values: dict[str, Any] = {}
        for name in dict.fromkeys([*model, *dense]):
            values |= {name: model[name]} if name in model else {}
            values |= {f"dense_{name}": dense[name]} if name in dense else {}
        shares = ("removed_params", "removed_all_params", "removed_kv", "removed_flops")
        values |= {name: getattr(self, name) for name in shares}
        values |= {} if model.get("latency") is None else {"removed_latency": self.removed_latency}
        values |= {"removed_bytes": self.removed_bytes} if self.budget == "bytes" else {}
        plan = self.planned
        values |= {} if plan is None else {"energy_kept": plan.energy_kept}
        values |= {"budget": self.budget}
        values |= {} if plan is None else {"requested": plan.requested}
        values |= {"achieved": self.achieved}
        if plan is not None:
            values |= {name: getattr(plan, name) for name in PLAN_FIELDS}
        return values if self.bits is None else values | {"bits": self.bits}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SizeAndCost":
        """Return the value that `to_dict` wrote.

        Raises KeyError if a figure is missing.
        """
        requested = values.get("requested")
        planned = None
        if requested is not None:
            plan_fields = {name: values.get(name) for name in PLAN_FIELDS}
            planned = PlanSummary(requested, values["energy_kept"], **plan_fields)
        return cls(
            ModelAccount.from_dict(values),
            ModelAccount.from_dict(values, "dense_"),
            values["budget"],
            planned,
            values.get("bits"),
        )
