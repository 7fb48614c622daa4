"""HTML of the status bar and of the list of jobs."""

from collections.abc import Collection, Hashable, Sequence
from html import escape

from .. import words
from ..state.job_queue import JobQueue
from ..state.job_record import ENDED, JobRecord, Stage, state_label
from .markup import button, note

WIDTH, HEIGHT = 240, 44  # of a loss curve, in units that the page scales
MOST_POINTS = 120  # of a loss curve
LOG_LINES = 200  # last lines of a job's log
ENDED_ROWS = 12  # ended jobs in the list
TIMES = "Time per stage"


def progress(job: JobRecord) -> str:
    """Return the progress bar of a running job, in pieces if the job has phases."""
    share = 100 * job.done / job.total if job.total else 0
    if job.job.phases:
        return phases(job.job.phases, job.part, share)
    return f"<span class='bar'><span style='width:{share:.1f}%'></span></span>"


def phases(names: Sequence[str], part: str, share: float) -> str:
    """Return a bar with a piece for each phase: those before the current one are full.

    part: of the job; it begins with the current phase. share: of the current stage, in percent.
    """
    current = next((i for i, name in enumerate(names) if part.startswith(name)), 0)
    filled = [100 if i < current else share if i == current else 0 for i in range(len(names))]
    pieces = "".join(
        f"<span title='{escape(name)}'><i style='width:{width:.1f}%'></i></span>"
        for name, width in zip(names, filled, strict=True)
    )
    label = words.compress.PHASE.format(current + 1, len(names), names[current])
    return f"<span class='phases' role='img' aria-label='{escape(label)}'>{pieces}</span>"


def steps(job: JobRecord) -> str:
    """Return stage, layer i/N, elapsed time and remaining time of a running job."""
    if job.canceled.is_set():
        return words.compress.CANCELING
    parts = [job.part, job.stage, f"{job.done}/{job.total}" if job.total else ""]
    remaining, duration = job.eta(), words.compress.duration
    if job.stages:
        parts.append(words.compress.ELAPSED.format(duration(job.elapsed())))
    steps_remaining = job.steps_eta()
    if steps_remaining is not None:
        parts.append(words.compress.STEPS_LEFT.format(duration(steps_remaining)))
    elif remaining is not None:
        parts.append(words.compress.TIME_LEFT.format(duration(remaining)))
    return " · ".join(escape(part) for part in parts if part)


def status_bar(
    jobs: JobQueue, browser: Hashable = None, runs: Collection[str] | None = None
) -> str:
    """Return the active job of a browser, or the result of its last job.

    browser: as `JobRecord.client`; None for the jobs of all browsers. runs: as in `run_buttons`.
    """
    waiting = jobs.waiting()
    active = [job for job in waiting if job.concerns(browser)]
    if active and active[0].state == "running":
        return running_bar(active[0], len(active) - 1)
    if active:
        position = words.compress.QUEUE_POSITION.format(waiting.index(active[0]))
        return (
            f"<div class='status-bar queued' data-job-id='{active[0].id}'><span class='dot'></span>"
            f"<b>{escape(active[0].title)}</b><span class='ending'>{position}</span>"
            f"{cancel_button(active[0])}</div>"
        )
    ended = [job for job in jobs.all() if job.state in ENDED and job.ended]
    last = max(filter(lambda job: job.concerns(browser), ended), key=_end, default=None)
    if last is None or last.was_read:
        others = f"<span>{words.compress.OTHERS_RUN}</span>" if waiting else ""
        return (
            "<div class='status-bar idle'><span class='dot'></span>"
            f"<span>{words.compress.READY}</span>{others}</div>"
        )
    return (
        f"<div class='status-bar {last.state}' data-job-id='{last.id}'><span class='dot'></span>"
        f"<b>{escape(last.title)}</b><span class='ending'>{escape(result(last))}</span>"
        f"{status_actions(last, runs)}</div>"
    )


def _end(job: JobRecord) -> float:
    return job.ended or 0.0


def running_bar(job: JobRecord, queued: int) -> str:
    """Return the status bar of a running job. queued: number of jobs behind it."""
    label = words.compress.QUEUED.format(queued)
    return (
        f"<div class='status-bar running' data-job-id='{job.id}'><span class='dot'></span>"
        f"<b>{escape(job.title)}</b>"
        f"<span class='steps' data-stage='{escape(job.stage)}' data-done='{job.done}' "
        f"data-total='{job.total}'>{steps(job)}</span>{progress(job)}"
        + (f"<span class='queue'>{label}</span>" if queued else "")
        + f"{cancel_button(job)}</div>"
    )


def result(job: JobRecord) -> str:
    """Return the outcome and the duration of a job, or the error."""
    if job.state == "done":
        seconds = words.compress.duration(job.seconds())
        if job.outcome:
            return f"{job.outcome} · {words.compress.DONE_IN.format(seconds)}"
        return words.compress.DONE.format(seconds)
    return job.error or state_label(job.state)


def status_actions(job: JobRecord, runs: Collection[str] | None = None) -> str:
    """Return the buttons of the status bar for a job that has ended. runs: as in `run_buttons`."""
    if job.state == "failed":
        return button(words.compress.DISMISS, "read", job=job.id)
    return run_buttons(job, runs)


def run_buttons(job: JobRecord, runs: Collection[str] | None = None) -> str:
    """Return buttons for the runs that a job made or measured, except for deleted runs.

    runs: ids of the runs that exist; None if no run was deleted.
    """
    existing = [run for run in job.result if runs is None or run in runs]
    if job.state != "done" or not existing:
        return ""
    single = len(existing) == 1
    open_button = button(words.compress.OPEN, "open", job=job.id) if single else ""
    return open_button + button(words.compress.COMPARE, "compare", job=job.id)


def job_list(jobs: JobQueue, runs: Collection[str] | None = None) -> str:
    """Return a heading, running and queued jobs, then jobs that have ended, newest first.

    runs: as in `run_buttons`.
    """
    waiting = jobs.waiting()
    ended = sorted(
        (job for job in jobs.all() if job.state in ENDED and job.is_stored),
        key=_end,
        reverse=True,
    )[:ENDED_ROWS]
    rows = "".join(job_row(job, position, runs) for position, job in enumerate(waiting))
    rows += "".join(job_row(job, 0, runs) for job in ended)
    listed = f"<div class='jobs'>{rows}</div>" if rows else note(words.compress.NO_JOBS)
    return f"<h3>{words.compress.JOBS}</h3>{listed}"


def job_row(job: JobRecord, position: int, runs: Collection[str] | None = None) -> str:
    """Return a row of the list.

    position: number of jobs before a queued job. runs: as in `run_buttons`.
    """
    if job.state == "running":
        state = (steps(job) or "starting") + finished_stages(job.stages)
        actions = progress(job) + cancel_button(job)
    elif job.state == "queued":
        state = words.compress.QUEUE_POSITION.format(position)
        actions = cancel_button(job)
    else:
        state, actions = escape(result(job)), ended_actions(job, runs)
    lines = "\n".join(escape(line) for line in job.log[-LOG_LINES:])
    times = stage_table(job.stages) if job.state in ENDED else ""
    label = words.compress.TIMES_AND_LOG if times else words.compress.LOG
    log = f"<summary>{label}</summary>{times}<pre>{lines}</pre>"
    details = f"<details>{log}</details>" if lines else ""
    return (
        f"<div class='job {job.state}' data-job-id='{job.id}' data-state='{job.state}'>"
        f"<span class='dot'></span><b>{escape(job.title)}</b><span class='state'>{state}</span>"
        f"<span class='acts'>{actions}</span>{loss_curve(job.curve)}{details}</div>"
    )


def finished_stages(stages: Sequence[Stage]) -> str:
    """Return the finished stages in the current part of a running job."""
    finished = [stage for stage in stages[:-1] if stage.part == stages[-1].part]
    if not finished:
        return ""
    return f"<span class='stages'>{escape(' · '.join(map(stage_time, finished)))}</span>"


def stage_table(stages: Sequence[Stage]) -> str:
    """Return the times of all stages of a job that has ended; "" without stages."""
    if not stages:
        return ""
    parts = [f"{stage.part} · " * bool(stage.part) + stage_time(stage) for stage in stages]
    rows = "".join(f"<li>{escape(part)}</li>" for part in parts)
    return f"<b>{TIMES}</b><ul class='stages'>{rows}</ul>"


def stage_time(stage: Stage) -> str:
    """Return the name, time and estimated time of a stage."""
    estimate = "" if stage.estimate is None else f" (estimated {exact_duration(stage.estimate)})"
    return f"{stage.name} {exact_duration(stage.seconds)}{estimate}"


def exact_duration(seconds: float) -> str:
    """Return a duration, with tenths below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 9.95 else words.compress.duration(seconds)


def cancel_button(job: JobRecord) -> str:
    """Return the button that cancels a job; "" after it was pressed."""
    if job.canceled.is_set():
        return ""
    return button(words.compress.CANCEL, "cancel", job=job.id, pressed=words.compress.CANCELING)


def ended_actions(job: JobRecord, runs: Collection[str] | None = None) -> str:
    """Return the buttons of a job that has ended. runs: as in `run_buttons`."""
    start_again = button(words.compress.START_AGAIN, "again", job=job.id)
    actions = [run_buttons(job, runs)] if job.state == "done" else [start_again]
    is_measured_sweep = job.kind == "sweep" and job.result and getattr(job.job, "evaluation", None)
    if is_measured_sweep or (job.kind == "table" and job.state == "done"):
        actions += [
            button(label, "table", job=job.id, file=file)
            for label, file in words.compress.SWEEP_TABLES.items()
        ]
    return "".join([*actions, button(words.compress.REMOVE, "forget", job=job.id)])


def loss_curve(losses: Sequence[float]) -> str:
    """Return a line of losses with the first and the last value; "" for fewer than two."""
    if len(losses) < 2:
        return ""
    low, high = min(losses), max(losses)
    step = max(1, len(losses) // MOST_POINTS)
    indices = sorted({*range(0, len(losses), step), len(losses) - 1})
    points = " ".join(
        f"{WIDTH * i / (len(losses) - 1):.1f},"
        f"{2 + (HEIGHT - 4) * (1 - (losses[i] - low) / ((high - low) or 1)):.1f}"
        for i in indices
    )
    change = f"{losses[0]:.3f} → {losses[-1]:.3f}"
    label = words.compress.LOSS_CURVE
    return (
        f"<figure class='curve'><svg viewBox='0 0 {WIDTH} {HEIGHT}' preserveAspectRatio='none' "
        f"role='img' aria-label='{escape(label, quote=True)}: {change}'>"
        f"<polyline points='{points}'/></svg>"
        f"<figcaption><b>{change}</b> {escape(label)}, {len(losses)} steps</figcaption></figure>"
    )
