"""The job queue: one worker thread, progress and cancellation.

The records are on the server and on disk, so that jobs survive a page reload and a restart.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import lrcore
from lrcore.system.as_json import json_text
from lrcore.system.cancellation import cancellable
from lrcore.system.errors import Cancelled, ResourceError
from lrcore.system.files import is_process_running, process_folder, remove_leftovers, write_text
from lrcore.system.resource_errors import resource_error

from ..base import process
from .job import Job
from .job_record import ENDED, JobRecord

log = logging.getLogger("workbench.jobs")

MAX_WAITING, MAX_WAITING_PER_CLIENT = 200, 50
SERVERS = ".servers"  # folder with a locked file per running server, in the folder of the records
Work = Callable[[JobRecord], list[str]]
# Errors of reading a record that was edited by hand.
INVALID_RECORD = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError)


def preempts(job: Job, running: Job) -> bool:
    """Return True if a running job stops for another job."""
    return running.is_preemptible and not job.is_preemptible and not running.is_prerequisite_of(job)


def client_turns(records: Sequence[JobRecord]) -> dict[str, int]:
    """Return the number of earlier jobs of the same client, by record id. records: oldest first."""
    counts: Counter[Hashable] = Counter()
    turns = {}
    for record in records:
        turns[record.id] = counts[record.client]
        counts[record.client] += 1
    return turns


class JobQueue:
    """The queue and its worker.

    Clients take turns: the next job is from the client that was served least recently.

    work(record): runs the job of a record, and returns the ids of the new runs. kinds: classes of
    jobs by kind, for reading records after a restart. client(): the client of the current request,
    if known.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Mapping[str, type[Job]],
        work: Work,
        client: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self.folder, self._kinds, self._work, self._client = folder, kinds, work, client
        self._served_at: dict[Hashable, float] = {}  # start of the last job, by client
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._queued = threading.Condition(self._lock)
        self._disk_lock = threading.RLock()  # one record is written or removed at a time
        self._records: dict[str, JobRecord] = {}
        self._read_records()
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def submit(self, job: Job, title: str = "") -> JobRecord:
        """Put a job in the queue and return its record.

        If the kind of the job is unique, an equal job that waits or runs is returned instead.
        Preemptible jobs wait for all other jobs. A running preemptible job stops for another job,
        unless it computes a prerequisite of that job. title: default is the title of the job.
        Raises ResourceError if the record cannot be written, and InputError if too many jobs wait;
        in both cases the job is not queued.
        """
        client = self._client()
        clients = set() if client is None else {client}
        with self._queued:
            if job.is_unique:
                for record in self.waiting():
                    if record.job == job:
                        if record.clients:
                            record.clients |= clients
                        return record
            record, running = JobRecord(job, title, client=client, clients=clients), self.running()
            self._check_limits(record.client)
            self._records[record.id] = record
            if running is not None and preempts(job, running.job):
                running.preempted.set()
            self._queued.notify()
        try:
            self._write(record)
        except ResourceError:
            if self._withdraw(record):
                raise
        return record

    def _check_limits(self, client: Hashable) -> None:
        clients = [record.client for record in self.waiting()]
        client_jobs = clients.count(client) if client is not None else 0
        if len(clients) >= MAX_WAITING or client_jobs >= MAX_WAITING_PER_CLIENT:
            is_client_limit = client_jobs >= MAX_WAITING_PER_CLIENT
            jobs = f"{client_jobs} of your jobs" if is_client_limit else f"{len(clients)} jobs"
            raise lrcore.InputError(
                f"{jobs} are waiting. Cancel jobs on the Compress tab, or try again later."
            )

    def _withdraw(self, record: JobRecord) -> bool:
        """Remove a job from the queue unless it has started. Returns whether it was removed."""
        with self._disk_lock, self._lock:
            if record.state == "queued":
                self._records.pop(record.id, None)
            return record.id not in self._records

    def cancel(self, job_id: str) -> None:
        """Cancel a job. A queued job ends at once, a running job after its current layer."""
        with self._disk_lock, self._lock:
            record = self._records.get(job_id)
            if record is None or record.state in ENDED:
                return
            record.canceled.set()
            record.add_log("cancel requested")
            if record.state == "queued":
                self._end(record, "cancelled")

    def restart(self, job_id: str) -> JobRecord:
        """Queue the job of an ended record again; its old record is removed.

        Results on disk are not computed again. Raises InputError like `submit`, and if the job was
        restarted before.
        """
        with self._disk_lock, self._lock:
            former = self._records.get(job_id)
            if former is None or former.state not in ENDED:
                raise lrcore.InputError(
                    "This job was restarted before, or has not ended. See the list of jobs."
                )
            del self._records[job_id]
        try:
            record = self.submit(former.job, former.title)
            if former.clients:
                record.clients |= former.clients
        except ResourceError:
            with self._lock:
                self._records[job_id] = former
            raise
        (self.folder / f"{job_id}.json").unlink(missing_ok=True)
        return record

    def remove(self, job_id: str) -> JobRecord | None:
        """Remove the record of a job that has ended, from disk as well, and return it; None if
        there is no such job.
        """
        with self._disk_lock, self._lock:
            record = self._records.get(job_id)
            if record is None or record.state not in ENDED:
                return None
            del self._records[job_id]
            (self.folder / f"{job_id}.json").unlink(missing_ok=True)
            return record

    def mark_read(self, job_id: str) -> None:
        """Remove the result of a job from the status bar."""
        record = self._records.get(job_id)
        if record is not None:
            record.was_read = True
            self._try_to_write(record)

    def get(self, job_id: str) -> JobRecord | None:
        return self._records.get(job_id)

    def all(self) -> list[JobRecord]:
        """Return all records, oldest first."""
        with self._lock:
            return sorted(self._records.values(), key=lambda record: record.created)

    def running(self) -> JobRecord | None:
        return next((record for record in self.all() if record.state == "running"), None)

    def waiting(self) -> list[JobRecord]:
        """Return the running job and the queued jobs, in the order of execution."""
        with self._lock:
            active = [record for record in self.all() if record.state not in ENDED]
            running = [record for record in active if record.state == "running"]
            queued = [record for record in active if record.state != "running"]
            turns, served_at = client_turns(queued), self._served_at

            def order(record: JobRecord) -> tuple[bool, int, float]:
                last_served = served_at.get(record.client, 0.0)
                return record.job.is_preemptible, turns[record.id], last_served

            return running + sorted(queued, key=order)

    def position(self, record: JobRecord) -> int:
        """Return the number of jobs before this job."""
        ids = [waiting.id for waiting in self.waiting()]
        return ids.index(record.id) if record.id in ids else 0

    def _run(self) -> None:
        process.lower_priority(process.JOB_NICENESS)
        while True:
            with self._queued:
                while not self.waiting():
                    self._queued.wait()
                record = self.waiting()[0]
                self._record_turn(record.client)
                record.start()
            with process.released_memory():
                self._run_job(record)

    def _run_job(self, record: JobRecord) -> None:
        self._try_to_write(record)
        log.info("job %s: %s starts", record.id, record.title)
        try:
            with cancellable(record.check_canceled):
                record.result = self._work(record)
            self._end(record, "done")
        except Cancelled:
            with self._lock:
                is_preempted = record.preempted.is_set() and not record.canceled.is_set()
                if is_preempted:
                    record.requeue()
            if not is_preempted:
                self._end(record, "cancelled")
        except lrcore.InputError as error:
            self._end(record, "failed", str(error))
        except BaseException as error:  # otherwise the worker thread and all later jobs would end
            self._end(record, "failed", self._error_message(record, error))

    def _record_turn(self, client: Hashable) -> None:
        """Record when a client was served. Clients without jobs are removed."""
        clients = {record.client for record in self.waiting()}
        self._served_at = {
            waiting: served for waiting, served in self._served_at.items() if waiting in clients
        }
        self._served_at[client] = time.time()

    def _error_message(self, record: JobRecord, error: BaseException) -> str:
        """Return the message for an exception other than InputError."""
        resource = resource_error(error)
        if resource is not None:
            return str(resource)
        log.error("job %s failed", record.id, exc_info=error)
        line = (str(error).strip().splitlines() or [""])[0][:300]
        return f"{type(error).__name__}: {line} The server's log has the details."

    def _end(self, record: JobRecord, state: str, error: str = "") -> None:
        record.end(state, error)
        # The record is written before the state changes. So a job that the page displays as ended
        # is also ended on disk, and a restart does not offer it again.
        with self._disk_lock:
            self._try_to_write(record, state)
            record.state = state

    def _try_to_write(self, record: JobRecord, state: str = "") -> None:
        """Write a record. On failure the queue continues, and a restart reads the older record."""
        try:
            self._write(record, state)
        except (ResourceError, OSError) as error:
            log.warning("job %s: its record was not written: %s", record.id, error)
            record.add_log(f"this record was not written: {error}")

    def _write(self, record: JobRecord, state: str = "") -> None:
        """Write a record unless it was removed."""
        with self._disk_lock:
            if record.is_stored and record.id in self._records:
                current = {"state": state or record.state, "server": self._server()}
                values = record.to_dict() | current
                write_text(self.folder / f"{record.id}.json", json_text(values, nulls=True))

    def _server(self) -> str:
        """Return the name of this process, by which servers of the same folder detect that it runs.

        Returns "" if the name is not available.
        """
        try:
            return process_folder(self.folder / SERVERS).name
        except OSError:
            return ""

    def _belongs_to_running_server(self, server: str) -> bool:
        """Return True if a record belongs to another process that still runs."""
        path = self.folder / SERVERS / Path(server).name
        is_running = bool(server) and is_process_running(path)
        return is_running and server != self._server()

    def _read_records(self) -> None:
        """Read the records on disk, except for active jobs of other servers."""
        remove_leftovers(self.folder)
        for path in sorted(self.folder.glob("*.json")):
            try:
                if not path.is_file():  # reading a pipe would block
                    raise TypeError("not a file")
                values = json.loads(path.read_text(encoding="utf-8"))
                record = JobRecord.from_dict(values, self._kinds)
                if record.id != path.stem:
                    raise ValueError("its id differs from the name of the file")
                server = str(values.get("server", ""))
            except INVALID_RECORD as error:
                log.warning("%s is not a valid job record and is ignored: %s", path.name, error)
                continue
            if record.state not in ENDED and self._belongs_to_running_server(server):
                log.info("job %s belongs to another running server", record.id)
                continue
            self._records[record.id] = record
            if record.state not in ENDED:
                record.state, record.ended = "interrupted", record.ended or time.time()
                record.add_log("interrupted: the server stopped while this job ran or was queued")
                self._try_to_write(record)
