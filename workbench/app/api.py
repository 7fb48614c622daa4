"""Endpoints for scripts, and tools for agents if gradio[mcp] is installed.

Long endpoints use the same job queue as the page. The docstrings and parameters of endpoints are
their descriptions on Gradio's API page and for agents.
"""

import functools
import html
import inspect
import reprlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.data import DATASETS
from lrcore.models.load import built_in_models
from lrcore.runs.runs import Run
from lrcore.system.as_json import json_text

from ..jobs import CompressJob, MeasureJob, start_analysis
from ..server.gradio_patches import add_endpoints
from ..state.job_record import ENDED, JobRecord
from ..state.store import Store
from ..widgets.components import MAX_TOKENS, whole_number
from ..widgets.events import bind
from ..widgets.recipe_fields import RecipeFields

# Valid types of an argument and their description, by annotation.
ARGUMENT_TYPES: dict[Any, tuple[Any, str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    list[str]: (list, "a list of texts"),
}


def build(store: Store) -> None:
    """Add the endpoints to the page."""
    endpoints = (models, methods, runs, analyze, allocate, compress, evaluate, compare)
    add_endpoints({endpoint.__name__: as_text(bind(endpoint, store)) for endpoint in endpoints})


def as_text(listener: Callable) -> Callable:
    """Return the endpoint with a result that agents and scripts can read.

    Agents get JSON text, because Gradio would write Python's notation. Messages are plain text,
    because no page shows them.
    """

    @functools.wraps(listener)
    def answer(request: Any, *arguments: Any) -> Any:
        try:
            check_types(listener, arguments)
            result = listener(request, *arguments)
        except gr.Error as error:
            raise gr.Error(html.unescape(str(error.message)), print_exception=False) from None
        return json_text(result, nulls=True) if _from_agent(request) else result

    # From Python 3.14 on, `functools.wraps` copies no annotations, but the function that computes
    # them, which is None here. Without them Gradio does not pass the request.
    answer.__annotations__ = listener.__annotations__
    return answer


def check_types(listener: Callable, arguments: Sequence[Any]) -> None:
    """Raise gr.Error for an argument of a wrong type; Gradio does not check."""
    parameters = [*inspect.signature(listener).parameters.values()][1:]  # without the request
    for parameter, value in zip(parameters, arguments, strict=False):
        default = (dict, "a mapping of names to values")
        kind, description = ARGUMENT_TYPES.get(parameter.annotation, default)
        is_text_list = parameter.annotation == list[str] and isinstance(value, list)
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)  # Python counts a bool as an int
            or (is_text_list and not all(isinstance(text, str) for text in value))
        ):
            raise gr.Error(
                f"{parameter.name} must be {description}, got {reprlib.repr(value)}.",
                print_exception=False,
            )


def _from_agent(request: gr.Request | None) -> bool:
    """Return True if a request came through the MCP server, which sets a header."""
    return request is not None and request.headers.get("x-gradio-user") == "mcp"


def models(store: Store) -> dict:
    """Built-in models and texts of a recipe. Folders, files and hub ids are valid too."""
    return {
        "models": list(built_in_models()),
        "data": list(DATASETS),
    }


def methods(store: Store) -> dict:
    """Compression methods and allocation policies, with their options and defaults."""
    return {"methods": lrcore.list_methods(), "policies": lrcore.list_policies()}


def runs(store: Store) -> list[dict]:
    """The stored runs: id, name, method, policy, recipe, size and evaluations."""
    return [described(run) for run in store.runs.all()]


def described(run: Run) -> dict:
    """Return the description of a run, JSON-able."""
    account = None if run.account is None else run.account.to_dict()
    return {
        "id": run.id,
        "name": run.name,
        "method": run.method,
        "policy": run.policy,
        "recipe": None if run.recipe is None else run.recipe.to_dict(),
        "account": account,
        "evaluations": run.evaluations,
    }


def analyze(store: Store, recipe: RecipeFields, threshold: float = 0.9) -> list[dict]:
    """Rank measures of every layer, component and matrix, raw and activation-aware.

    Args:
        recipe: such as {"model": "demo-llama", "ratio": 0.2}; other fields have defaults.
        threshold: the fraction of the energy, between 0 and 1, of the energy rank.
    """
    full = lrcore.Recipe.from_dict(recipe)
    wait_for_job(start_analysis(store, full))
    return store.analysis(full).table(threshold).to_dict("records")


def allocate(store: Store, recipe: RecipeFields) -> dict:
    """Ranks of a recipe and the size of the model: {"summary": ..., "ranks": [...]}.

    Args:
        recipe: such as {"model": "demo-llama", "ratio": 0.2}; other fields have defaults.
    """
    full = lrcore.Recipe.from_dict(recipe)
    wait_for_job(start_analysis(store, full))
    store.factors(full)
    plan = store.plan(full)
    return {"summary": plan.summary(), "ranks": plan.table().to_dict("records")}


def compress(store: Store, recipe: RecipeFields, name: str = "") -> str:
    """Compress a model, store the run, and return its id.

    Args:
        recipe: such as {"model": "demo-llama", "ratio": 0.2}; other fields have defaults.
        name: of the run on the page; generated from the recipe if empty.
    """
    job = CompressJob(lrcore.Recipe.from_dict(recipe), name[:80])
    return wait_for_job(store.jobs.submit(job)).result[0]


def evaluate(
    store: Store, run: str, data: str = "stories", samples: int = 32, seq_len: int = 256
) -> dict:
    """Perplexity of a stored run and of its dense model, with the protocol.

    Args:
        run: id of the run.
        data: built-in name, file, or hub data set; its test split is read.
        samples: windows to measure; 0: the complete test split.
        seq_len: tokens per window.
    """
    settings = lrcore.EvaluationSettings(data, samples or None, seq_len)
    store.runs.get(run)  # raises for an unknown run before anything is queued
    wait_for_job(store.jobs.submit(MeasureJob((run,), settings)))
    return next(
        evaluation
        for evaluation in reversed(store.runs.get(run).evaluations)
        if "settings" in evaluation
        and lrcore.EvaluationSettings(**evaluation["settings"]) == settings
    )


def compare(
    store: Store,
    runs: list[str],
    prompt: str,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
) -> dict:
    """Continuations of one prompt by the dense model ("dense") and by each run (its id).

    Args:
        runs: ids of the runs.
        prompt: the text to continue.
        max_new_tokens: the maximum number of new tokens per model, up to 4,096.
        temperature: of the sampling; 0 for the most likely token.
        seed: of the sampling, the same for every model.
    """
    max_tokens = whole_number(max_new_tokens, "max_new_tokens", MAX_TOKENS)
    stored = [store.runs.get(run) for run in runs]
    models = {"dense": store.dense(stored[0].recipe)} if stored else {}
    models |= {run.id: store.run_model(run) for run in stored}
    return {
        name: lrcore.generate(model, prompt, max_tokens, temperature, 1.0, seed)
        for name, model in models.items()
    }


def wait_for_job(record: JobRecord | None) -> JobRecord | None:
    """Return the record of a finished job. Raises gr.Error if it failed or was canceled."""
    while record is not None and record.state not in ENDED:
        time.sleep(0.1)
    if record is not None and record.state != "done":
        raise gr.Error(record.error or f"The job was {record.state}.", print_exception=False)
    return record
