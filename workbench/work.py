"""What each kind of job does. A job's spec is plain data; what it makes is a run on disk or an object on the shelf."""

import time
from typing import TYPE_CHECKING, Any

import lrcore

from .export import model_card
from .jobs import Job
from .runs import Run

if TYPE_CHECKING:
    from .session import Session


def analyse(session: "Session", job: Job) -> list[str]:
    recipe = lrcore.Recipe.from_dict(job.spec["recipe"])
    load(session, recipe, job)
    session.analysis(recipe, job.progress)
    session.factors(recipe, job.progress)
    return []


def survey(session: "Session", job: Job) -> list[str]:
    """The factors of every method, probed where the policy asks for it, so that their allocations can be laid side by side."""
    recipe = lrcore.Recipe.from_dict(job.spec["recipe"])
    load(session, recipe, job)
    for one in session.by_method(recipe):
        job.part = one.method
        session.factors(one, job.progress)
    return []


def compress(session: "Session", job: Job) -> list[str]:
    """One run: compress, keep, and measure against the dense model unless the spec says otherwise."""
    recipe = lrcore.Recipe.from_dict(job.spec["recipe"])
    return [one_run(session, job, recipe, job.spec.get("name", ""), job.spec.get("evaluation")).id]


def sweep(session: "Session", job: Job) -> list[str]:
    """Every method at every ratio, as one job; runs finished before a cancel or a failure stay."""
    base = lrcore.Recipe.from_dict(job.spec["recipe"])
    todo = [(method, ratio) for method in job.spec["methods"] for ratio in job.spec["ratios"]]
    for i, (method, ratio) in enumerate(todo):
        job.part = f"run {i + 1} of {len(todo)}"
        job.say(f"{job.part}: {method}, remove {ratio:.0%}")
        recipe = base.with_(method=method, ratio=ratio, options=base.options if method == base.method else {}, overrides={})
        job.result = [*job.result, one_run(session, job, recipe, "", job.spec.get("evaluation")).id]
    return job.result


def measure(session: "Session", job: Job) -> list[str]:
    """Evaluate kept runs, and their dense models, under one protocol."""
    for run_id in job.spec["runs"]:
        run = session.runs.get(run_id)
        job.say(f"measure {run.name}")
        session.runs.add_evaluation(run_id, evaluation(session, run, job.spec["evaluation"], job))
    return job.spec["runs"]


def push(session: "Session", job: Job) -> list[str]:
    """Upload a run's checkpoint with its model card."""
    from huggingface_hub import HfApi

    run, hub = session.runs.get(job.spec["run"]), HfApi()
    (run.checkpoint / "README.md").write_text(model_card(run), encoding="utf-8")
    job.progress("push", 0, 1)
    hub.create_repo(job.spec["repo"], private=job.spec["private"], exist_ok=True)
    hub.upload_folder(repo_id=job.spec["repo"], folder_path=run.checkpoint)
    job.progress("push", 1, 1)
    return []


def one_run(session: "Session", job: Job, recipe: lrcore.Recipe, name: str, measured: dict[str, Any] | None) -> Run:
    dense = load(session, recipe, job)
    factors = session.factors(recipe, job.progress)
    small = lrcore.compress(dense, recipe, factors=factors, plan=lrcore.allocate(factors, recipe), progress=job.progress)
    job.progress("save", 0, 1)
    run = session.runs.write(name or f"{recipe.method} {recipe.ratio:.0%} {recipe.policy}", recipe, small)
    session.shelf.put("small", run.id, small)
    job.say(f"kept as {run.name} ({run.id})")
    if measured:
        session.runs.add_evaluation(run.id, evaluation(session, run, measured, job))
    return run


def load(session: "Session", recipe: lrcore.Recipe, job: Job) -> Any:
    job.progress("load", 0, 1)
    model = session.dense(recipe)
    job.progress("load", 1, 1)
    return model


def evaluation(session: "Session", run: Run, settings: dict[str, Any], job: Job) -> dict[str, Any]:
    """Perplexity of a run and of its dense model under the same protocol; the dense one is measured once per protocol."""
    dense = dense_evaluation(session, run.recipe, settings, job)
    result = lrcore.evaluate(session.small(run), **settings, progress=job.progress).to_dict()
    same_base = session.dense(run.recipe).fingerprint == run.report.get("base_fingerprint")
    return result | {"dense_perplexity": dense.to_dict()["perplexity"], "same_base": same_base, "settings": settings, "when": time.time()}


def dense_evaluation(session: "Session", recipe: lrcore.Recipe, settings: dict[str, Any], job: Job) -> Any:
    key = (recipe.model, recipe.revision, recipe.dtype, recipe.device, *sorted(settings.items()))

    def make() -> Any:
        return lrcore.evaluate(
            session.dense(recipe), **settings, progress=lambda _, done, total: job.progress("evaluate dense", done, total)
        )

    return session.shelf.get("evaluation", key, make)


WORK = {"analyse": analyse, "survey": survey, "compress": compress, "sweep": sweep, "measure": measure, "push": push}
