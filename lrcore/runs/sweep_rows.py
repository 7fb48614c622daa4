"""The columns of a sweep's table, with the same names on the command line and on the page.

Costs without a prefix are computed by formula; costs measured on the running model are called
`measured_*`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..compression.steps.chain import Chain, Label


@dataclass(frozen=True)
class Column:
    """The description of a column. kind: "setting", "planned" (computed by formula) or "measured".

    optional: omitted from a row's plain values if it was not measured.
    """

    about: str
    kind: str
    unit: str = ""
    optional: bool = False


def _setting(about: str, **field_options: Any) -> Any:
    return field(metadata={"column": Column(about, "setting")}, **field_options)


def _optional_setting(about: str) -> Any:
    return field(default=None, metadata={"column": Column(about, "setting", optional=True)})


def _planned(about: str, unit: str = "") -> Any:
    return field(default=None, metadata={"column": Column(about, "planned", unit)})


def _measured(about: str, unit: str = "", optional: bool = False, **field_options: Any) -> Any:
    column = Column(about, "measured", unit, optional)
    return field(default=None, metadata={"column": column}, **field_options)


@dataclass(frozen=True)
class SweepRow:
    """A compressed model, or the dense model, measured on a text. None: not measured.

    The columns are described by their metadata, see `COLUMNS`.
    """

    calibrated_on: str | None = _setting("calibration data; None for the dense model")
    method: str = _setting("compression method, or the first step; dense for the dense model")
    policy: str | None = _setting("allocation policy, or what chose; None for the dense model")
    ratio: float | None = _setting("share to remove; None where none is given")
    measured_on: str | None = _setting("data set or task; None: a model not measured")
    achieved: float | None = _planned("share removed, in what the budget counts", "share")
    parameters: int | None = _planned("all parameters, tied ones once", "parameters")
    megabytes: float | None = _planned("weights as they are stored", "MB")
    kv_bytes_per_token: int | None = _planned("KV cache", "bytes/token")
    flops_per_token: int | None = _planned("one decoded token after `context` others", "FLOPs")
    context: int | None = _planned("tokens in the cache for flops_per_token", "tokens")
    measured_kv_bytes_per_token: float | None = _measured("KV cache", "bytes/token", True)
    measured_flops_per_token: float | None = _measured(
        "one decoded token after `measured_context` others", "FLOPs", True
    )
    measured_context: int | None = _measured("tokens in the cache when measured", "tokens", True)
    prefill_speedup: float | None = _measured("prefill speed over the dense model's", "", True)
    decode_speedup: float | None = _measured("decode speed over the dense model's", "", True)
    making_seconds: float | None = _measured(
        "making the model, without what earlier cells have made; with `speed`",
        "s",
        True,
        compare=False,
    )
    accuracy: float | None = _measured("right answers of a task", "share", True)
    accuracy_error: float | None = _measured("standard error of accuracy", "share", True)
    chance: float | None = _measured("accuracy of random guessing", "share", True)
    perplexity: float | None = _measured("exp of nll")
    perplexity_error: float | None = _measured(
        "standard error of perplexity's difference to the dense model's, paired by window", "", True
    )
    nll: float | None = _measured("mean loss of the predicted tokens", "nats/token")
    bits_per_byte: float | None = _measured("loss per byte of the text", "bits/byte")
    nonfinite: int | None = _measured("windows with a loss that is NaN or infinite", "windows")
    kl: float | None = _measured("KL divergence from the dense model", "nats/token", True)
    top1: float | None = _measured("tokens with the dense model's top prediction", "share", True)
    protocol: Mapping[str, Any] | None = _measured("all that the evaluation depends on")
    error: str | None = _setting("why the model could not be made; None where it was", default=None)
    samples: int | None = _optional_setting("calibration windows")
    seed: int | None = _optional_setting("of the calibration windows")
    options: str | None = _optional_setting("fields of the recipe that are not the defaults")
    then: str | None = _optional_setting("steps after the first, in their order")

    @classmethod
    def of(
        cls,
        steps: Chain,
        account: Mapping[str, Any],
        figures: Mapping[str, Any],
        **extra: Any,
    ) -> "SweepRow":
        """Return the row of the model that the steps make; without steps, of the dense model.

        account: size and cost by formula, under the names of the planned columns; figures: an
        evaluation, with the `delta_error` of a comparison. Only values of columns are read. extra:
        further columns, such as `measured_on` and `context`.
        """
        settings: dict[str, Any] = {
            "calibrated_on": None,
            "method": "dense",
            "policy": None,
            "ratio": 0.0,
        }
        if steps:
            settings = _settings_of(steps)
        planned = {name: account.get(name) for name in column_names("planned")}
        results = {name: figures.get(name) for name in column_names("measured")}
        results["perplexity_error"] = _perplexity_error(figures)
        return cls(**settings, **{**planned, **results, **extra})

    @property
    def title(self) -> str:
        """Return a short name of the model: "a3 uniform 20%, stories", or "dense"."""
        if self.method == "dense":
            return "dense"
        words = str(Label(self.method, self.policy, self.ratio))
        words += f" ({self.options})" if self.options else ""
        words += f" > {self.then}" if self.then else ""
        return f"{words}, {self.calibrated_on}" if self.calibrated_on else words

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without optional columns that were not measured."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or not COLUMNS[name].optional
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SweepRow":
        """Return the row of the values of `to_dict`."""
        return cls(**values)


COLUMNS: dict[str, Column] = {f.name: f.metadata["column"] for f in fields(SweepRow)}


def column_names(kind: str) -> tuple[str, ...]:
    """Return the names of the columns of a kind, in order."""
    return tuple(name for name, column in COLUMNS.items() if column.kind == kind)


def _perplexity_error(figures: Mapping[str, Any]) -> float | None:
    """Return the standard error of a perplexity, computed from the error of its logarithm."""
    perplexity, error = figures.get("perplexity"), figures.get("delta_error")
    return None if perplexity is None or error is None else perplexity * error


def _settings_of(steps: Chain) -> dict[str, Any]:
    """Return the setting columns of a model that the steps make."""
    first, *later_steps = steps
    reader = next((step for step in steps if step.reads_text), None)
    return {
        "calibrated_on": reader and reader.reads_text,
        "method": first.label.method,
        "policy": first.label.choice,
        "ratio": first.label.ratio,
        "samples": reader and getattr(reader.settings, "samples", reader.recipe.samples),
        "seed": reader and getattr(reader.settings, "seed", reader.recipe.seed),
        "options": first.options,
        "then": " > ".join(step.title for step in later_steps) or None,
    }
