"""Controls of the perplexity measurement."""

import gradio as gr

import lrcore
from lrcore.data import DATASETS
from lrcore.evaluation.evaluation_settings import PROTOCOLS

from .. import words
from .events import form_data


class EvaluationControls:
    """The controls of the evaluation, made once and used by the Compress and Compare tabs."""

    def __init__(self) -> None:
        self.on = gr.Checkbox(
            True,
            label=words.compress.MEASURE_AFTER,
            elem_id="measure-on",
            render=False,
        )
        self.data = gr.Dropdown(
            [words.compress.AS_CALIBRATED, *DATASETS],
            value=words.compress.AS_CALIBRATED,
            allow_custom_value=True,
            label="Text",
            info=words.compress.MEASURED_TEXT_INFO,
            elem_id="measure-data",
            render=False,
        )
        self.samples = gr.Number(
            32,
            precision=0,
            label="Windows",
            info="0: all of the test split",
            elem_id="measure-samples",
            render=False,
        )
        self.seq_len = gr.Number(
            0,
            precision=0,
            label="Tokens per window",
            info=words.compress.WINDOW_INFO,
            elem_id="measure-seq-len",
            render=False,
        )
        self.protocol = gr.Dropdown(
            list(PROTOCOLS),
            value="windows",
            label=words.compress.PROTOCOL,
            info=words.compress.PROTOCOL_INFO,
            elem_id="measure-protocol",
            render=False,
        )
        self.collected = form_data(self.all, [part.value for part in self.all])

    @property
    def all(self) -> list[gr.components.Component]:
        """The controls in the order of the arguments of `read_settings`."""
        return [self.on, self.data, self.samples, self.seq_len, self.protocol]

    def render(self) -> None:
        self.on.render()
        with gr.Row():
            for part in self.all[1:]:
                part.render()


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
