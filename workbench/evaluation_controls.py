"""How perplexity is measured: the settings that stand by every figure."""

import gradio as gr

import lrcore

from . import text
from .events import form_data


class EvaluationControls:
    """The evaluation's controls, made once; Compress places them, Compare uses the same ones."""

    def __init__(self) -> None:
        self.on = gr.Checkbox(
            True,
            label="Measure dense and compressed after compressing",
            elem_id="measure-on",
            render=False,
        )
        self.data = gr.Dropdown(
            list(lrcore.DATASETS),
            value=lrcore.Recipe().data,
            allow_custom_value=True,
            label="Text",
            info="its test split",
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
            256, precision=0, label="Tokens per window", elem_id="measure-seq-len", render=False
        )
        self.protocol = gr.Dropdown(
            list(lrcore.PROTOCOLS),
            value="windows",
            label="Protocol",
            info=text.PROTOCOL_INFO,
            elem_id="measure-protocol",
            render=False,
        )
        self.collected = form_data(self.all, [part.value for part in self.all])

    @property
    def all(self) -> list[gr.components.Component]:
        """In the order of the arguments of `read_settings`."""
        return [self.on, self.data, self.samples, self.seq_len, self.protocol]

    def render(self) -> None:
        self.on.render()
        with gr.Row():
            for part in self.all[1:]:
                part.render()


def read_settings(
    on: bool, data: str, samples: float | None, seq_len: float | None, protocol: str = "windows"
) -> lrcore.EvaluationSettings | None:
    """The settings of the evaluation; None where nothing is to be measured.

    Raises InputError for an empty box.
    """
    if not on:
        return None
    windows = int(samples) if samples else None
    if protocol != "windows":
        own = int(seq_len) if seq_len and lrcore.PROTOCOLS[protocol].kind == "strided" else None
        return lrcore.EvaluationSettings(data, windows, own, protocol=protocol)
    if seq_len is None or seq_len < 2:
        raise lrcore.InputError(f"Tokens per window must be at least 2, got {seq_len!r}.")
    return lrcore.EvaluationSettings(data, windows, int(seq_len))
