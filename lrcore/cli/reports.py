"""What the commands print of a model that they made, as JSON: the keys stand here and nowhere
else.
"""

from typing import Any

from ..history import Compressed


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


def step_report(step: Any) -> dict[str, Any]:
    """Of one step: its fields, but for whether the model fits a stock architecture."""
    return {name: value for name, value in step.fields_dict().items() if name != "stock"}
