"""The server of the page, killed at random moments of a job: what the next server shows, and
equality of the end with that of an undisturbed server.
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
MEASURED = (1, 2)  # indices of the columns that are empty until a run is evaluated
POLL, NOTED = 0.05, 10.0  # seconds
ANALYSIS = "<b>Analyze "  # the beginning of a job's title
OFFER = "data-action='again'"  # button of a job
_ROW = re.compile(r"<tr role='row'.*?</tr>")
_CELL = re.compile(r"<td role='gridcell'(?: class='number')?(?: title='[^']*')?>(.*?)</td>")
_JOB = re.compile(r"\w+' data-job-id='(\w+)' data-state='(\w+)'>(.*)", re.DOTALL)
_EVENTS = re.compile(r"(\d+) files, (\d+) calls")
Row = tuple[str, ...]


@dataclass(frozen=True)
class Act:
    """Action on the page that starts a job. begin: the initial folder."""

    name: str
    starts: Callable[[Visitor], None]
    begin: Path | None = None


@dataclass(frozen=True)
class Undisturbed:
    """Results of a server that is not killed. events: their number by kind; table: the file of a
    sweep.
    """

    rows: frozenset[Row]
    models: frozenset[tuple]
    table: str
    events: Mapping[str, int]


class Killed(Exception):
    """The server has ended by SIGKILL."""


class Page(Workspace):
    """Folder with the runs and the cache of a server, and the server."""

    @contextmanager
    def served(self, kind: str = "files", at: int = 0) -> Iterator["Visited"]:
        """Provide an open page. Raise Killed if the server was killed: during its start, or while
        the page sent a request or waited.
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
            message = f"exit code {server.process.poll()}: {server.log[-800:]}"
            raise AssertionError(message) from error
        finally:
            server.stop()
            self.log, self.left = server.log, group_runs(server.process.pid)


class Visited:
    """An open page."""

    def __init__(self, server: Server) -> None:
        self.server, self.page = server, Visitor(server.url)

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return state and HTML of each job on the page by id, without the analysis that a page
        requests when it opens, which cannot be started again.
        """
        self.page.does("heartbeat", "tick")
        rows = (self.page.value_of("job-list") or "").split("<div class='job ")[1:]
        job_rows = [_JOB.match(row).groups() for row in rows]
        return {job: (state, html) for job, state, html in job_rows if ANALYSIS not in html}

    def restarts(self, job: str) -> None:
        """Press "Start again"."""
        self.page.does("job-list", "select", event_data={"action": "again", "job": job})

    def until_ended(self) -> None:
        """Wait until no job is running or queued. Raise Killed if the server has ended."""
        end = time.monotonic() + PATIENCE
        while any(state in ("running", "queued") for state, _ in self.jobs().values()):
            assert time.monotonic() < end, self.jobs()
            time.sleep(POLL)

    def rows(self) -> frozenset[Row]:
        """Return the rows of the table of runs."""
        table_rows = _ROW.findall(self.page.runs(columns=list(COLUMNS))["html"].replace("\n", " "))
        words = [[re.sub("<.*?>", "", cell) for cell in _CELL.findall(row)] for row in table_rows]
        return frozenset(tuple(row) for row in words)

    def table(self) -> str:
        """Return the table of a sweep as downloaded from the page, without times, or "" if there is
        none.
        """
        jobs = self.jobs()
        job = next((job for job, (_, html) in jobs.items() if "data-file='table.csv'" in html), "")
        if not job:
            return ""
        event_data = {"action": "table", "job": job, "file": "table.csv"}
        self.page.does("job-list", "select", event_data=event_data)
        text = json.loads(self.page.value_of("downloader"))["text"]
        return json.dumps([without_times(row) for row in csv.DictReader(io.StringIO(text))])


def was_killed(server: Server) -> bool:
    """Return whether the server has ended by SIGKILL, which may be visible on the page before the
    process has a return code.
    """
    end = time.monotonic() + NOTED
    while server.process.poll() is None and time.monotonic() < end:
        time.sleep(POLL)
    return server.process.poll() == -signal.SIGKILL


def offered(visited: Visited, was_accepted: bool) -> Iterator[str]:
    """Yield errors in how a server shows the job of its predecessor. was_accepted: whether the
    predecessor had confirmed the job.
    """
    jobs = visited.jobs()
    if was_accepted and not jobs:
        yield "the job is lost"
    for state, html in jobs.values():
        if state not in ("done", "interrupted") or (state != "done" and OFFER not in html):
            yield f"the job is {state}: {html[:600]}"


def go_on(visited: Visited, act: Act) -> None:
    """Restart an interrupted job, or start the job if the server does not know it."""
    jobs = visited.jobs()
    for job, (state, _) in jobs.items():
        if state == "interrupted":
            visited.restarts(job)
    if not jobs:
        act.starts(visited.page)


def harmed(workspace: Page, before: frozenset[tuple], expected: Undisturbed) -> Iterator[str]:
    """Yield errors after a server has ended: in its folder, its log, and leftover processes."""
    models = workspace.models()
    if not models <= expected.models | before:
        yield "a run is incomplete"
    if any(not any(set(run) <= set(model) for model in models) for run in before):
        yield "an earlier run has changed"
    if "Traceback" in workspace.log:
        yield workspace.log[-1000:]
    if workspace.left:
        yield "a process is left over"


def differing(visited: Visited, expected: Undisturbed) -> Iterator[str]:
    """Yield differences between the final page and that of an undisturbed server. If a compression
    was killed after its run was saved, there is a second, unevaluated run.
    """
    states = {state for state, _ in visited.jobs().values()}
    if states != {"done"}:
        yield f"the jobs end {states}: {visited.server.log[-600:]}"
    rows, unmeasured = visited.rows(), {without_measures(row) for row in expected.rows}
    if not expected.rows <= rows or not rows <= expected.rows | unmeasured:
        yield f"the runs are {sorted(rows)}, expected {sorted(expected.rows)}"
    if visited.table() != expected.table:
        yield f"the table is {visited.table()}, expected {expected.table}"


def without_measures(row: Row) -> Row:
    """Return the row of a run before its evaluation."""
    return tuple("–" if at in MEASURED else word for at, word in enumerate(row))


def group_runs(group: int) -> bool:
    """Return whether a process of the group is still running."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def undisturbed(workspace: Page, act: Act) -> Undisturbed:
    """Run the action without a kill."""
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
    """Kill the server several times in a row during the action, then let it end."""
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
        wrong.append(f"{act.name}: the runs differ from those of an undisturbed server")
    return Outcome(
        count, (*wrong, *(f"{act.name}: {path} is left over" for path in workspace.temporary()))
    )
