"""Controls of the perplexity measurement."""

import lrcore
from lrcore.data import DATASETS
from lrcore.evaluation.evaluation_settings import PROTOCOLS

from .. import words
from .fields import Field, FieldGroup, field_group


def evaluation_fields() -> list[Field]:
    """Return the fields, in the order of the arguments of `read_settings`."""
    text, protocols = words.compress, tuple((name, name) for name in PROTOCOLS)
    return [
        Field("measure-on", text.MEASURE_AFTER, True),
        Field(
            "measure-data",
            "Text",
            text.AS_CALIBRATED,
            text.MEASURED_TEXT_INFO,
            suggestions=(text.AS_CALIBRATED, *DATASETS),
        ),
        Field("measure-samples", "Windows", 32, "0: all of the test split"),
        Field("measure-seq-len", "Tokens per window", 0, text.WINDOW_INFO),
        Field("measure-protocol", text.PROTOCOL, "windows", text.PROTOCOL_INFO, choices=protocols),
    ]


def evaluation_controls() -> FieldGroup:
    """Return the controls, made once and used by the Compress, Compare and Experiments tabs."""
    return field_group("measure-fields", evaluation_fields(), render=False)


def read_settings(
    on: bool,
    data: str,
    samples: float | None,
    seq_len: float | None,
    protocol: str = "windows",
    calibrated_on: str = lrcore.Recipe().data,
) -> lrcore.EvaluationSettings | None:
    """Return the settings of the evaluation, or None if measuring is off.

    calibrated_on: the text meant by `words.compress.AS_CALIBRATED`. Raises InputError for a number
    out of range.
    """
    if not on:
        return None
    data = calibrated_on if (data or "").strip() in ("", words.compress.AS_CALIBRATED) else data
    if samples and samples < 0:
        raise lrcore.InputError(f"Windows must be at least 1, or 0 for all; got {samples:g}.")
    if seq_len and seq_len < 2:
        raise lrcore.InputError(
            f"Tokens per window must be at least 2, or 0 for the default; got {seq_len:g}."
        )
    windows, length = (int(number) if number else None for number in (samples, seq_len))
    if protocol != "windows" and PROTOCOLS[protocol].kind != "strided":
        length = None
    return lrcore.EvaluationSettings(data, windows, length, protocol=protocol)
