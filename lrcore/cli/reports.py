"""What the commands print of a model that they made and of what there is to choose. The keys of
their JSON stand here and nowhere else.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..account import SizeAndCost
from ..history import Compressed
from ..recipe import BUDGETS, Recipe


def compressed_report(model: Any) -> dict[str, Any]:
    """Of a model that `compress` made: base, recipe, ranks, summary, calibration, stock, seconds,
    and bounds where they were computed.
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


def in_few_lines(stock: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a model fits a stock architecture, for a person: its ranks, which are the same in
    every layer, once per component.
    """
    ranks = {slot.partition(".")[2]: rank for slot, rank in (stock["ranks"] or {}).items()}
    kept = {name: value for name, value in stock.items() if name != "ranks"}
    listed = ", ".join(f"{name} {rank}" for name, rank in ranks.items())
    return kept | ({"ranks": listed} if listed else {})


def step_report(step: Any) -> dict[str, Any]:
    """Of one step: its fields, but for whether the model fits a stock architecture."""
    return {name: value for name, value in step.fields_dict().items() if name != "stock"}


def ratio_counts(recipe: Recipe, account: SizeAndCost) -> str:
    """One sentence: what the ratio is a share of, and how much of it is removed."""
    ratio, kind = recipe.ratio, BUDGETS[account.budget]
    return f"The ratio {ratio:g} is the {kind}; {account.achieved:.4f} is reached."


def growth(account: SizeAndCost) -> str:
    """One sentence where the model has more parameters than the dense one, else ""."""
    dense, own = account.dense.parameters, account.model.parameters
    if own <= dense:
        return ""
    return (
        f"The model has more parameters than the dense one: {own:,} against {dense:,} "
        f"(+{own / dense - 1:.1%})."
    )


def option_rows(kind: str, described: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A row per option of a method or policy, from what `describe` gives."""
    for one in described["options"]:
        low, high = (f"{one[side]:g}" if side in one else "" for side in ("low", "high"))
        span = f"{low} to {high}" if high else f"at least {low}" if low else "true, false"
        yield {
            kind: described["name"],
            "option": one["name"],
            "default": str(one["default"]).lower(),
            "values": ", ".join(one.get("choices", ())) or span,
            "what it is": one["about"],
        }
