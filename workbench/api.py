"""The intended endpoints for scripts, and as tools for agents where gradio[mcp] is installed.

Long ones go through the same queue as the page and wait for their turn. Gradio and agents read
their docstrings and their parameters.
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

from .components import MOST_TOKENS, whole
from .events import bind
from .job_record import ENDED, JobRecord
from .jobs import CompressJob, MeasureJob, start_analysis
from .recipe_fields import RecipeFields
from .store import Store

KINDS: dict[Any, tuple[Any, str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    list[str]: (list, "a list of texts"),
}  # what an argument of an endpoint may be, by its annotation


def build(store: Store) -> None:
    for endpoint in (models, methods, runs, analyse, allocate, compress, evaluate, compare):
        listener = as_text(bind(endpoint, store))
        gr.api(listener, api_name=endpoint.__name__, concurrency_limit=4)


def as_text(listener: Callable) -> Callable:
    """The endpoint, whose result agents get as JSON text: Gradio would write it in Python's
    notation for them. What is refused is said in plain text, as no page shows it.
    """

    @functools.wraps(listener)
    def answer(*values: Any) -> Any:
        *given, request = values
        try:
            check_types(listener, given)
            result = listener(*given)
        except gr.Error as error:
            raise gr.Error(html.unescape(str(error.message)), print_exception=False) from None
        return lrcore.json_text(result, nulls=True) if _from_agent(request) else result

    signature = inspect.signature(listener)
    last = inspect.Parameter(
        "request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request
    )
    answer.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), last.replace(default=None)]
    )
    answer.__annotations__ = {**listener.__annotations__, "request": gr.Request}
    return answer


def check_types(listener: Callable, given: Sequence[Any]) -> None:
    """Raise gr.Error for an argument of another type than the endpoint's; Gradio does not look."""
    for one, value in zip(inspect.signature(listener).parameters.values(), given, strict=False):
        kind, words = KINDS.get(one.annotation, (dict, "a mapping of names to values"))
        listed = one.annotation == list[str] and isinstance(value, list)
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or (listed and not all(isinstance(each, str) for each in value))
        ):
            raise gr.Error(
                f"{one.name} must be {words}, got {reprlib.repr(value)}.", print_exception=False
            )


def _from_agent(request: gr.Request | None) -> bool:
    """Whether a request came through the MCP server, which says so in a header."""
    return request is not None and request.headers.get("x-gradio-user") == "mcp"


def models(store: Store) -> dict:
    """What a recipe's `model` and `data` may name, beside a folder, a file or a hub id."""
    return {
        "models": list(lrcore.built_in_models()),
        "data": list(lrcore.DATASETS),
    }


def methods(store: Store) -> dict:
    """Compression methods and allocation policies, with their options and defaults."""
    return {"methods": lrcore.methods(), "policies": lrcore.policies()}


def runs(store: Store) -> list[dict]:
    """The kept runs: id, name, method, policy, ratio, tags, and what they weigh."""
    return [described(run) for run in store.runs.all()]


def described(run: lrcore.Run) -> dict:
    """One run in a list, JSON-able."""
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


def analyse(store: Store, recipe: RecipeFields, threshold: float = 0.9) -> list[dict]:
    """Rank measures of every layer, component and matrix, raw and activation-aware.

    Args:
        recipe: such as {"model": "demo-llama", "method": "a3", "ratio": 0.2}; the rest by default.
        threshold: the share of the energy, between 0 and 1, that the energy rank holds.
    """
    full = lrcore.Recipe.from_dict(recipe)
    wait(start_analysis(store, full))
    return store.analysis(full).table(threshold).to_dict("records")


def allocate(store: Store, recipe: RecipeFields) -> dict:
    """Ranks that a recipe gives, and what the model would weigh: {"summary": ..., "ranks": [...]}.

    Args:
        recipe: such as {"model": "demo-llama", "method": "a3", "ratio": 0.2}; the rest by default.
    """
    full = lrcore.Recipe.from_dict(recipe)
    wait(start_analysis(store, full))
    store.factors(full)
    plan = store.plan(full)
    return {"summary": plan.summary(), "ranks": plan.table().to_dict("records")}


def compress(store: Store, recipe: RecipeFields, name: str = "") -> str:
    """Compress by a recipe, keep the run, and return its id.

    Args:
        recipe: such as {"model": "demo-llama", "method": "a3", "ratio": 0.2}; the rest by default.
        name: what the run is called on the page; made from the recipe where it is empty.
    """
    job = CompressJob(lrcore.Recipe.from_dict(recipe), name[:80])
    return wait(store.jobs.submit(job)).result[0]


def evaluate(
    store: Store, run: str, data: str = "stories", samples: int = 32, seq_len: int = 256
) -> dict:
    """Perplexity of a kept run and of its dense model, with the protocol.

    Args:
        run: id of the run.
        data: built-in name, file, or hub data set; its test split is read.
        samples: windows to measure; 0: the whole test split.
        seq_len: tokens per window.
    """
    settings = lrcore.EvaluationSettings(data, samples or None, seq_len)
    store.runs.get(run)  # an unknown run is refused before the queue
    wait(store.jobs.submit(MeasureJob((run,), settings)))
    return next(
        one
        for one in reversed(store.runs.get(run).evaluations)
        if "settings" in one and lrcore.EvaluationSettings(**one["settings"]) == settings
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
        max_new_tokens: the most tokens that each model adds, up to 4,096.
        temperature: of the sampling; 0 takes the likeliest token.
        seed: of the sampling, the same for every model.
    """
    most = whole(max_new_tokens, "max_new_tokens", MOST_TOKENS)
    kept = [store.runs.get(run) for run in runs]
    models = {"dense": store.dense(kept[0].recipe)} if kept else {}
    models |= {run.id: store.small(run) for run in kept}
    return {
        name: lrcore.generate(model, prompt, most, temperature, 1.0, seed)
        for name, model in models.items()
    }


def wait(record: JobRecord | None) -> JobRecord | None:
    """The record of a job once it has ended. Raises gr.Error with its message where it failed or
    was stopped.
    """
    while record is not None and record.state not in ENDED:
        time.sleep(0.1)
    if record is not None and record.state != "done":
        raise gr.Error(record.error or f"The job was {record.state}.", print_exception=False)
    return record
