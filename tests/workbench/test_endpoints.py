"""The functions behind the endpoints of `workbench/app/api.py`."""

import functools
from typing import get_type_hints

import gradio as gr

from workbench.app import api
from workbench.widgets.events import REQUEST, bind
from workbench.widgets.recipe_fields import RecipeFields


def wraps_of_python_3_14(function):
    """Decorate as `functools.wraps` does from Python 3.14 on: annotations are not copied."""
    copied = [name for name in functools.WRAPPER_ASSIGNMENTS if name != "__annotations__"]
    return functools.partial(functools.update_wrapper, wrapped=function, assigned=copied)


def test_endpoints_keep_the_types_by_which_gradio_passes_the_request(monkeypatch):
    monkeypatch.setattr(functools, "wraps", wraps_of_python_3_14)
    endpoint = api.as_text(bind(api.allocate, None))
    types = {REQUEST: gr.Request, "recipe": RecipeFields, "return": dict}
    assert get_type_hints(endpoint) == types
