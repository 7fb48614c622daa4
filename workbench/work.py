"""What each kind of job does.

A job's spec is plain data; what it makes is a run on disk or an object on the shelf.
"""

import time
from typing import TYPE_CHECKING, Any

import lrcore

from . import text
from .export import target
from .jobs import Job
from .keys import model_key
from .runs import Run
from .survey import wishes
from .sweeps import lacking, made, measurements, sweep_of

if TYPE_CHECKING:
    from .session import Session


def analyse(session: "Session", job: Job) -> list[str]:
    recipe = lrcore.Recipe.from_dict(job.spec["recipe"])
    load(session, recipe, job)
    session.analysis(recipe, job.progress)
    session.factors(recipe, job.progress)
    return []


def survey(session: "Session", job: Job) -> list[str]:
    """The factors of every method, probed where the policy asks for it, so that their allocations
    can be laid side by side.

    Where the model is small enough, each is also measured at the recipe's budget, by its policy and
    with even ranks.
    """
    recipe = lrcore.Recipe.from_dict(job.spec["recipe"])
    load(session, recipe, job)
    for one in session.by_method(recipe):
        job.part = one.method
        session.factors(one, job.progress)
    job.part, todo = "", wishes(session, recipe, job.id)
    for i, wish in enumerate(todo):
        job.progress("measure", i, len(todo))
        session.live.wait(wish, job.cancelled)
    job.progress("measure", len(todo), len(todo))
    return []


def compress(session: "Session", job: Job) -> list[str]:
    """One run: compress, keep, and measure against the dense model unless the spec says
    otherwise.
    """
    recipe = lrcore.Recipe.from_dict(job.spec["recipe"])
    return [one_run(session, job, recipe, job.spec.get("name", ""), job.spec.get("evaluation")).id]


def shorten(session: "Session", job: Job) -> list[str]:
    """A run without some of the model's layers: kept and measured as a compressed one."""
    recipe, spec = lrcore.Recipe.from_dict(job.spec["recipe"]), job.spec
    small = lrcore.shorten(
        load(session, recipe, job), recipe, spec["layers"], spec["by"], progress=job.progress
    )
    told = small.report["shortened"]
    job.say(text.shortened(small.report))
    name = spec["name"] or f"without {len(told['gone'])} of {told['of']} layers, {told['by']}"
    return [kept(session, job, recipe, name, small, spec["evaluation"]).id]


def slice_hidden(session: "Session", job: Job) -> list[str]:
    """A run with a narrower residual stream: kept and measured as a compressed one."""
    recipe, spec = lrcore.Recipe.from_dict(job.spec["recipe"]), job.spec
    small = lrcore.slice_hidden(
        load(session, recipe, job),
        recipe,
        spec["rotations"],
        recipe.multiple,
        progress=job.progress,
    )
    told = small.report["sliced"]
    job.say(text.sliced(small.report))
    name = spec["name"] or f"sliced to {told['width']} of {told['of']}, {told['rotations']}"
    return [kept(session, job, recipe, name, small, spec["evaluation"]).id]


def sweep(session: "Session", job: Job) -> list[str]:
    """Every method, policy, ratio and calibration set, as one job.

    What is there already, from before a stop, is not made again.

    A run that cannot be made, such as a KV budget for a method that leaves the cache as it is, is
    left out and said in the log.
    """
    todo, asked, refused = sweep_of(job.spec).cells(), measurements(job.spec), None
    for i, recipe in enumerate(todo):
        job.part = f"run {i + 1} of {len(todo)}"
        job.say(
            f"{job.part}: {recipe.method}, {recipe.policy}, remove {recipe.ratio:.0%}, calibrated "
            f"on {recipe.data}"
        )
        run = made(session.runs.all(), recipe)
        if run is not None:
            job.say(f"there already as {run.name} ({run.id})")
        try:
            run = run or one_run(session, job, recipe, "", None)
        except lrcore.InputError as error:
            refused = error
            job.say(f"left out: {error}")
            continue
        for settings in lacking(run, asked):
            session.runs.add_evaluation(run.id, evaluation(session, run, settings, job))
        job.result = [*job.result, run.id]
    if refused and not job.result:
        raise refused
    return job.result


def measure(session: "Session", job: Job) -> list[str]:
    """Evaluate kept runs, and their dense models, under one protocol."""
    for run_id in job.spec["runs"]:
        run = session.runs.get(run_id)
        job.say(f"measure {run.name}")
        session.runs.add_evaluation(run_id, evaluation(session, run, job.spec["evaluation"], job))
    return job.spec["runs"]


def quantise(session: "Session", job: Job) -> list[str]:
    """A run as codes of a few bits, kept as a run of its own and measured as the first one was."""
    run, bits = session.runs.get(job.spec["run"]), job.spec["bits"]
    return [
        derived(
            session,
            job,
            run,
            f"{run.name} · {bits} bit",
            lrcore.quantise(session.small(run), bits, progress=job.progress),
        )
    ]


def heal(session: "Session", job: Job) -> list[str]:
    """A run trained for some steps against its dense model, kept as a run of its own and measured
    as the first one was.

    Stopped and started again, it goes on from the state that the training keeps in the run's
    folder.
    """
    run = session.runs.get(job.spec["run"])
    teacher, state = load(session, run.recipe, job), run.folder / "healing.safetensors"
    small = lrcore.heal(
        session.small(run),
        lrcore.Healing(**job.spec["healing"]),
        teacher=teacher,
        state=state,
        progress=job.progress,
    )
    made = derived(session, job, run, f"{run.name} · healed", small)
    state.unlink(missing_ok=True)
    return [made]


def derived(session: "Session", job: Job, run: Run, name: str, small: Any) -> str:
    """Keep what was made of a run as a run, and measure it by every protocol of the first one.

    Returns its id.
    """
    made = kept(session, job, run.recipe, name, small, None)
    for one in run.evaluations:
        if "settings" in one:
            session.runs.add_evaluation(made.id, evaluation(session, made, one["settings"], job))
    return made.id


def export(session: "Session", job: Job) -> list[str]:
    """Write a run as a Hugging Face folder, anew each time: its name and measurements may have
    changed.
    """
    run, stock = session.runs.get(job.spec["run"]), job.spec["stock"]
    job.progress("export", 0, 1)
    folder = lrcore.export(
        session.small(run),
        target(run, stock),
        run.evaluations,
        stock,
        overwrite=True,
        title=run.name,
    )
    session.runs.add_result(run.id, "export", {"stock": stock}, {"folder": str(folder)})
    job.say(f"written to {folder}")
    job.progress("export", 1, 1)
    return []


def speed(session: "Session", job: Job) -> list[str]:
    """Tokens per second of kept runs and of their dense model, taking turns, so that a busy
    machine slows all of them alike.
    """
    runs = [session.runs.get(run_id) for run_id in job.spec["runs"]]
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault(model_key(run.recipe), []).append(run)
    for own in groups.values():
        models = [load(session, own[0].recipe, job), *(session.small(run) for run in own)]
        dense, *found = (
            one.to_dict() for one in lrcore.measure_speed(models, progress=job.progress)
        )
        for run, one in zip(own, found, strict=True):
            where = {"device": str(models[0].device), "dtype": models[0].dtype}
            session.runs.add_result(run.id, "speed", where, {"dense": dense, "small": one})
    return job.spec["runs"]


def push(session: "Session", job: Job) -> list[str]:
    """Export a run and upload the folder."""
    export(session, job)
    job.progress("push", 0, 1)
    folder = target(session.runs.get(job.spec["run"]), job.spec["stock"])
    job.say(f"uploaded to {lrcore.push(folder, job.spec['repo'], job.spec['private'])}")
    job.progress("push", 1, 1)
    return []


def one_run(
    session: "Session", job: Job, recipe: lrcore.Recipe, name: str, measured: dict[str, Any] | None
) -> Run:
    dense = load(session, recipe, job)
    factors = session.factors(recipe, job.progress)
    small = lrcore.compress(
        dense, recipe, factors=factors, plan=lrcore.allocate(factors, recipe), progress=job.progress
    )
    return kept(
        session,
        job,
        recipe,
        name or f"{recipe.method} {recipe.ratio:.0%} {recipe.policy}",
        small,
        measured,
    )


def kept(
    session: "Session",
    job: Job,
    recipe: lrcore.Recipe,
    name: str,
    small: Any,
    measured: dict[str, Any] | None,
) -> Run:
    """Keep what was made of a dense model as a run, and measure it where that is asked for."""
    job.progress("save", 0, 1)
    run = session.runs.write(name, recipe, small)
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
    """Perplexity of a run and of its dense model on the same tokens, and how far their
    predictions are apart.
    """
    dense = session.dense(run.recipe)
    found = lrcore.compare(
        dense,
        session.small(run),
        **settings,
        progress=lambda _, done, total: job.progress("evaluate both", done, total),
    ).to_dict()
    more = {
        "dense_perplexity": found["dense"]["perplexity"],
        "kl": found["kl"],
        "top1": found["top1"],
        "delta": found["delta"],
    }
    same_base = dense.fingerprint == run.report.get("base_fingerprint")
    return (
        found["small"] | more | {"same_base": same_base, "settings": settings, "when": time.time()}
    )


WORK = {
    "analyse": analyse,
    "survey": survey,
    "compress": compress,
    "shorten": shorten,
    "slice": slice_hidden,
    "sweep": sweep,
    "measure": measure,
    "speed": speed,
    "quantise": quantise,
    "heal": heal,
    "export": export,
    "push": push,
}
