"""Output of commands about compressed models and about options."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..layers.account import PlanSummary, SizeAndCost
from ..recipes.history import Compressed, StandardFit
from ..recipes.recipe import BUDGETS, Recipe


def compressed_report(model: Any) -> dict[str, Any]:
    """Return the report of a compressed model: base, recipe, ranks, summary, calibration, stock,
    seconds, and bounds if computed.
    """
    step = model.step(Compressed)
    values = step.fields_dict()
    bounds = values.pop("bounds")
    report = {
        "base": model.base.name,
        "base_fingerprint": model.base.fingerprint,
        "recipe": values.pop("recipe"),
        "ranks": values.pop("ranks"),
        "summary": model.account.to_dict(),
        **values,
    }
    return report | ({"bounds": bounds} if bounds else {})


def cut_rows(nested: Any) -> list[dict[str, Any]]:
    """Return a row per cut of a nested checkpoint: ratio, achieved ratio and parameters."""
    accounts = [(cut.ratio, cut.provenance.account) for cut in nested.cuts]
    return [
        {"ratio": ratio, "achieved": account.achieved, "parameters": account.model.parameters}
        for ratio, account in accounts
    ]


def size_rows(account: SizeAndCost) -> Iterator[dict[str, Any]]:
    """Yield a row per size and cost of a model: dense, compressed, and the relative change."""
    states = account.dense.state_bytes, account.model.state_bytes
    pairs = (
        ("parameters", account.dense.parameters, account.model.parameters),
        ("MB", account.dense.megabytes, account.model.megabytes),
        (
            "KV cache, bytes per token",
            account.dense.kv_bytes_per_token,
            account.model.kv_bytes_per_token,
        ),
        *([("states, bytes per sequence", *states)] if account.dense.state_bytes else []),
        (
            "FLOPs per token after a window",
            account.dense.flops_per_token,
            account.model.flops_per_token,
        ),
    )
    for name, dense, compressed in pairs:
        change = f"{compressed / dense - 1:+.1%}" if dense else ""
        yield {"": name, "dense": dense, "compressed": compressed, "change": change}


def compressed_values(model: Any) -> dict[str, Any]:
    """Return the figures of a compressed model besides `size_rows`, in a line each; None for
    missing figures.
    """
    planned, fit = model.account.planned, model.step(Compressed).stock
    return {
        "predicted perplexity": None if planned is None else predicted_line(planned),
        "standard architecture": None if fit is None else fit_line(fit),
    }


def predicted_line(planned: PlanSummary) -> str | None:
    """Return the predicted perplexity with its interval and its text, or None."""
    value, low, high = planned.predicted_perplexity, planned.predicted_low, planned.predicted_high
    if value is None:
        return None
    if low is None or high is None:
        return f"{value:.4f}, on the calibration text"
    interval = f"90 % interval {low:.4f} to {high:.4f}"
    return f"{value:.4f} ({interval}), on the test split of the calibration text"


def fit_line(fit: StandardFit) -> str:
    """Return whether a model fits a standard architecture; otherwise why not, and the ranks by
    component that fit, which are the same in all layers.
    """
    if fit.qualifies:
        return "yes"
    ranks = {component: rank for (_, component), rank in (fit.ranks or {}).items()}
    text = ", ".join(f"{component} {rank}" for component, rank in ranks.items())
    suffix = f". Ranks that fit (--target transformers-stock): {text}" if text else ""
    return f"no: {', '.join(fit.reasons)}{suffix}"


def step_report(step: Any) -> dict[str, Any]:
    """Return the fields of a step without the fit to a standard architecture."""
    return {name: value for name, value in step.fields_dict().items() if name != "stock"}


def ratio_counts(recipe: Recipe, account: SizeAndCost) -> str:
    """Return a sentence with the meaning of the ratio and the achieved value."""
    ratio, kind = recipe.ratio, BUDGETS[account.budget]
    return f"The ratio {ratio:g} is the {kind}; {account.achieved:.4f} is achieved."


def growth(account: SizeAndCost) -> str:
    """Return a sentence if the model has more parameters than the dense model, else ""."""
    dense, compressed = account.dense.parameters, account.model.parameters
    if compressed <= dense:
        return ""
    return (
        f"The model has more parameters than the dense model: {compressed:,} instead of {dense:,} "
        f"(+{compressed / dense - 1:.1%})."
    )


def option_rows(kind: str, described: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield a row per option of the description of a method or policy."""
    for option in described["options"]:
        low, high = (f"{option[side]:g}" if side in option else "" for side in ("low", "high"))
        span = f"{low} to {high}" if high else f"at least {low}" if low else "true, false"
        yield {
            kind: described["name"],
            "option": option["name"],
            "default": str(option["default"]).lower(),
            "values": ", ".join(option.get("choices", ())) or span,
            "description": option["about"],
        }
