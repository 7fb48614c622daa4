"""What a browser would send: the form's values for a recipe, clicks, requests."""

from types import SimpleNamespace
from typing import Any

import gradio as gr

import lrcore
from workbench.form import form_values


def values_of(recipe: lrcore.Recipe) -> list[Any]:
    """The form's values; a temperature that the form leaves as it is reads 0.1."""
    return [0.1 if value == gr.skip() else value for value in form_values(recipe)]


def click(**data: Any) -> SimpleNamespace:
    """The event of a component that reports `data`."""
    return SimpleNamespace(_data=data)


BROWSER = SimpleNamespace(session_hash="one", query_params={})
