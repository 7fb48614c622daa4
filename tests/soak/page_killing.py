"""The page's server, killed at random moments while it does what a person has asked for: what the
next server shows, and whether the end is that of an undisturbed one.
"""

import csv
import io
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from killing import Outcome, Workspace, without_times
from page_server import PATIENCE, Server
from visitor import Refused, Visitor

SCRIPT = Path(__file__).with_name("killed_page.py")
COLUMNS = ("name", "perplexity", "change", "size", "method", "policy", "removed", "parameters")
MEASURED = (1, 2)  # of these, what a run lacks until it is measured
POLL, NOTED = 0.05, 10.0  # seconds
ANALYSIS = "<b>Analyze "  # how a job is called
OFFER = "data-action='again'"  # a button of a job
_ROW = re.compile(r"<tr role='row'.*?</tr>")
_CELL = re.compile(r"<td role='gridcell'(?: class='number')?(?: title='[^']*')?>(.*?)</td>")
_JOB = re.compile(r"\w+' data-job-id='(\w+)' data-state='(\w+)'>(.*)", re.DOTALL)
_EVENTS = re.compile(r"(\d+) files, (\d+) calls")
Row = tuple[str, ...]


@dataclass(frozen=True)
class Act:
    """What a person does on the page that starts a job. begin: the folder that it begins in."""

    name: str
    starts: Callable[[Visitor], None]
    begin: Path | None = None


@dataclass(frozen=True)
class Undisturbed:
    """What a server that nobody kills shows and leaves. events: of each kind; table: that of a
    sweep as a file.
    """

    rows: frozenset[Row]
    models: frozenset[tuple]
    table: str
    events: Mapping[str, int]


class Killed(Exception):
    """The server has ended by SIGKILL."""


class Page(Workspace):
    """A folder with the runs and the cache of a server, and that server."""

    @contextmanager
    def served(self, kind: str = "files", at: int = 0) -> Iterator["Visited"]:
        """An open page. Raises Killed where the server was killed, at whatever moment: while it
        started, while the page asked it, or while the page waited.
        """
        kill_settings = {"KIND": kind, "AT": str(at), "HERE": str(self.folder)}
        environment = {f"LRCORE_SOAK_{name}": value for name, value in kill_settings.items()}
        server = Server(self.folder, self.folder / "cache", str(SCRIPT), begin=False, **environment)
        try:
            server.start()
            yield Visited(server)
        except (httpx.HTTPError, OSError, AssertionError, Refused) as error:
            if was_killed(server):
                raise Killed from None
            message = f"it ended with {server.process.poll()}: {server.log[-800:]}"
            raise AssertionError(message) from error
        finally:
            server.stop()
            self.log, self.left = server.log, group_runs(server.process.pid)


class Visited:
    """A page that is open."""

    def __init__(self, server: Server) -> None:
        self.server, self.page = server, Visitor(server.url)

    def jobs(self) -> dict[str, tuple[str, str]]:
        """State and HTML of each job on the page, by id; not of the analysis that a page that
        opens asks for, which nobody would start again.
        """
        self.page.does("heartbeat", "tick")
        rows = (self.page.value_of("job-list") or "").split("<div class='job ")[1:]
        job_rows = [_JOB.match(row).groups() for row in rows]
        return {job: (state, html) for job, state, html in job_rows if ANALYSIS not in html}

    def restarts(self, job: str) -> None:
        """Press "Start again"."""
        self.page.does("job-list", "select", event_data={"action": "again", "job": job})

    def until_ended(self) -> None:
        """Wait until no job runs or waits. Raises Killed where the server has ended."""
        end = time.monotonic() + PATIENCE
        while any(state in ("running", "queued") for state, _ in self.jobs().values()):
            assert time.monotonic() < end, self.jobs()
            time.sleep(POLL)

    def rows(self) -> frozenset[Row]:
        """The table of runs."""
        table_rows = _ROW.findall(self.page.runs(columns=list(COLUMNS))["html"].replace("\n", " "))
        words = [[re.sub("<.*?>", "", cell) for cell in _CELL.findall(row)] for row in table_rows]
        return frozenset(tuple(row) for row in words)

    def table(self) -> str:
        """The table of a sweep as the page gives it, without times; "" where there is none."""
        jobs = self.jobs()
        job = next((job for job, (_, html) in jobs.items() if "data-file='table.csv'" in html), "")
        if not job:
            return ""
        event_data = {"action": "table", "job": job, "file": "table.csv"}
        self.page.does("job-list", "select", event_data=event_data)
        text = json.loads(self.page.value_of("downloader"))["text"]
        return json.dumps([without_times(row) for row in csv.DictReader(io.StringIO(text))])


def was_killed(server: Server) -> bool:
    """Whether the server has ended by SIGKILL, which a page may learn before it is noted."""
    end = time.monotonic() + NOTED
    while server.process.poll() is None and time.monotonic() < end:
        time.sleep(POLL)
    return server.process.poll() == -signal.SIGKILL


def offered(visited: Visited, was_accepted: bool) -> Iterator[str]:
    """What is wrong with how a server shows the job of the one before. was_accepted: whether that
    one had answered that it has the job.
    """
    jobs = visited.jobs()
    if was_accepted and not jobs:
        yield "the job is lost"
    for state, html in jobs.values():
        if state not in ("done", "interrupted") or (state != "done" and OFFER not in html):
            yield f"the job is {state}: {html[:600]}"


def go_on(visited: Visited, act: Act) -> None:
    """Start what was interrupted again; what no server knows of, anew."""
    jobs = visited.jobs()
    for job, (state, _) in jobs.items():
        if state == "interrupted":
            visited.restarts(job)
    if not jobs:
        act.starts(visited.page)


def harmed(workspace: Page, before: frozenset[tuple], expected: Undisturbed) -> Iterator[str]:
    """What is wrong after a server has ended: in its folder, in its log, and what still runs."""
    models = workspace.models()
    if not models <= expected.models | before:
        yield "a run is not whole"
    if any(not any(set(run) <= set(model) for model in models) for run in before):
        yield "an earlier run is not as it was"
    if "Traceback" in workspace.log:
        yield workspace.log[-1000:]
    if workspace.left:
        yield "a process is left"


def differing(visited: Visited, expected: Undisturbed) -> Iterator[str]:
    """What the page shows in the end that an undisturbed one does not. A compression that was
    killed after its run was kept makes another one, beside it, which is not measured.
    """
    states = {state for state, _ in visited.jobs().values()}
    if states != {"done"}:
        yield f"the jobs end {states}: {visited.server.log[-600:]}"
    rows, unmeasured = visited.rows(), {without_measures(row) for row in expected.rows}
    if not expected.rows <= rows or not rows <= expected.rows | unmeasured:
        yield f"the runs are {sorted(rows)}, undisturbed {sorted(expected.rows)}"
    if visited.table() != expected.table:
        yield f"the table is {visited.table()}, undisturbed {expected.table}"


def without_measures(row: Row) -> Row:
    """The row of a run that is not measured yet."""
    return tuple("–" if at in MEASURED else word for at, word in enumerate(row))


def group_runs(group: int) -> bool:
    """Whether a process of the group still runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def undisturbed(workspace: Page, act: Act) -> Undisturbed:
    """Do it once with nobody killed."""
    workspace.start_from(act.begin)
    with workspace.served() as visited:
        act.starts(visited.page)
        visited.until_ended()
        states = [state for state, _ in visited.jobs().values()]
        assert states == ["done"], visited.server.log
        rows, table = visited.rows(), visited.table()
    event_counts = _EVENTS.search(workspace.log)
    assert event_counts is not None, workspace.log[-2000:]
    events = {"files": int(event_counts[1]), "calls": int(event_counts[2])}
    return Undisturbed(rows, frozenset(workspace.models()), table, events)


def killed(
    workspace: Page, act: Act, expected: Undisturbed, chance: random.Random, kills: int
) -> Outcome:
    """Kill the server so many times in a row while it does it, then let it end."""
    workspace.start_from(act.begin)
    before, wrong, count, was_accepted = frozenset(workspace.models()), [], 0, False
    for _ in range(kills):
        kind = chance.choice(("calls", "files"))
        at = chance.randrange(1, expected.events[kind] + 1)
        label = f"{act.name} ({kind} {at})"
        try:
            with workspace.served(kind, at) as visited:
                wrong += [f"{label}: {line}" for line in offered(visited, was_accepted)]
                go_on(visited, act)
                was_accepted = True
                visited.until_ended()
        except Killed:
            count += 1
        wrong += [f"{label}: {line}" for line in harmed(workspace, before, expected)]
    with workspace.served() as visited:
        wrong += [f"{act.name}: {line}" for line in offered(visited, was_accepted)]
        go_on(visited, act)
        visited.until_ended()
        wrong += [f"{act.name}: {line}" for line in differing(visited, expected)]
    wrong += [f"{act.name}: {line}" for line in harmed(workspace, before, expected)]
    if workspace.models() != expected.models:
        wrong.append(f"{act.name}: the runs are not those of an undisturbed server")
    return Outcome(
        count, (*wrong, *(f"{act.name}: {path} is left" for path in workspace.temporary()))
    )
