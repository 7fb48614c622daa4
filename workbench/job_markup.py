"""The status bar and the list of jobs, as HTML."""

from html import escape

from . import run_markup, stages, text
from .job_queue import Jobs
from .job_record import ENDED, JobRecord
from .markup import button, note


def progress(job: JobRecord) -> str:
    share = 100 * job.done / job.total if job.total else 0
    return f"<span class='bar'><span style='width:{share:.1f}%'></span></span>"


def steps(job: JobRecord) -> str:
    """Stage, layer i/N, time since it began and time left of a running job."""
    if job.cancelled.is_set():
        return text.CANCELLING
    parts = [job.part, job.stage, f"{job.done}/{job.total}" if job.total else ""]
    left = job.eta()
    parts.append(f"{text.duration(job.elapsed())} so far" if job.stages else "")
    parts.append(f"about {text.duration(left)} left in this stage" if left is not None else "")
    return " · ".join(escape(part) for part in parts if part)


def status_bar(jobs: Jobs) -> str:
    """The running job, or how the last one ended."""
    job = jobs.running()
    if job is not None:
        queued = len(jobs.waiting()) - 1
        return (
            f"<div class='status-bar running' data-job-id='{job.id}'><span class='dot'></span>"
            f"<b>{escape(job.title)}</b>"
            f"<span class='steps' data-stage='{escape(job.stage)}' data-done='{job.done}' "
            f"data-total='{job.total}'>{steps(job)}</span>{progress(job)}"
            + (f"<span class='queue'>{queued} queued</span>" if queued else "")
            + f"{cancel(job)}</div>"
        )
    ended = [job for job in jobs.all() if job.state in ENDED and job.ended]
    last = max(ended, key=lambda job: job.ended, default=None)
    if last is None or last.was_read:
        return "<div class='status-bar idle'><span class='dot'></span><span>Ready</span></div>"
    return (
        f"<div class='status-bar {last.state}' data-job-id='{last.id}'><span class='dot'></span>"
        f"<b>{escape(last.title)}</b><span class='ending'>{escape(ending(last))}</span>"
        f"{what_next(last)}</div>"
    )


def ending(job: JobRecord) -> str:
    """How a job ended."""
    if job.state == "done":
        took = f"in {text.duration(job.seconds())}"
        return f"{job.outcome} · {took}" if job.outcome else f"done {took}"
    return job.error or job.state


def what_next(job: JobRecord) -> str:
    """Buttons of the status bar for a job that has ended."""
    return button("Dismiss", "read", job=job.id) if job.state == "failed" else made(job)


def made(job: JobRecord) -> str:
    """Buttons for the runs that a job has made or measured."""
    if job.state != "done" or not job.result:
        return ""
    open_one = button("Open", "open", job=job.id) if len(job.result) == 1 else ""
    return open_one + button("Compare", "compare", job=job.id)


def job_list(jobs: Jobs) -> str:
    """Running and queued jobs first, then ended ones, newest first."""
    waiting = jobs.waiting()
    ended = sorted(
        (job for job in jobs.all() if job.state in ENDED and job.kept),
        key=lambda job: -(job.ended or 0),
    )[:12]
    rows = "".join(job_row(job, i) for i, job in enumerate(waiting)) + "".join(
        job_row(job, 0) for job in ended
    )
    return f"<div class='jobs'>{rows}</div>" if rows else note(text.NOTHING_QUEUED)


def job_row(job: JobRecord, place: int) -> str:
    """place: how many jobs come before a queued one."""
    if job.state == "running":
        state = (steps(job) or "starting") + stages.passed(job.stages)
        actions = progress(job) + cancel(job)
    elif job.state == "queued":
        state, actions = f"queued, {place} before it", cancel(job)
    else:
        state, actions = escape(ending(job)), ended_actions(job)
    lines = "\n".join(escape(line) for line in job.log[-200:])
    times = stages.table(job.stages) if job.state in ENDED else ""
    told = f"{times}<pre>{lines}</pre>"
    summary = "times and log" if times else "log"
    details = f"<details><summary>{summary}</summary>{told}</details>" if lines else ""
    return (
        f"<div class='job {job.state}' data-job-id='{job.id}' data-state='{job.state}'>"
        f"<span class='dot'></span><b>{escape(job.title)}</b><span class='state'>{state}</span>"
        f"<span class='acts'>{actions}</span>{run_markup.curve(job.curve)}{details}</div>"
    )


def cancel(job: JobRecord) -> str:
    """The button, until it was pressed."""
    if job.cancelled.is_set():
        return ""
    return button("Cancel", "cancel", job=job.id, pressed=text.CANCELLING)


def ended_actions(job: JobRecord) -> str:
    """What can be done with a job that has ended."""
    again = button("Start again", "again", job=job.id)
    actions = [made(job)] if job.state == "done" else [again]
    of_runs = job.kind == "sweep" and job.result and job.job.evaluation
    if of_runs or (job.kind == "table" and job.state == "done"):
        actions += [
            button(label, "table", job=job.id, file=file)
            for label, file in text.SWEEP_TABLES.items()
        ]
    return "".join([*actions, button("Remove", "forget", job=job.id)])
