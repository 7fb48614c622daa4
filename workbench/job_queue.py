"""The job queue: one worker thread, progress, cancel.

The records live on the server and on disk, so that neither a page reload nor a restart loses one.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import lrcore

from . import heap
from .job import Job
from .job_record import ENDED, JobRecord
from .priority import JOBS, give_way

log = logging.getLogger("workbench.jobs")

MOST, OWN = 200, 50  # jobs that may wait: of all clients, of one
SERVERS = ".servers"  # in the folder of the records: a locked file for each server that runs
Work = Callable[[JobRecord], list[str]]
# What a record that somebody has edited leads to.
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError)


def goes_before(job: Job, running: Job) -> bool:
    """Whether a running job makes way for another one."""
    return running.yields and not job.yields and not running.serves(job)


def turns_of(records: Sequence[JobRecord]) -> dict[str, int]:
    """How many of these jobs, oldest first, are of the same client and come before; by id."""
    before: Counter[Hashable] = Counter()
    turns = {}
    for record in records:
        turns[record.id] = before[record.client]
        before[record.client] += 1
    return turns


class Jobs:
    """The queue and its one worker.

    Clients take turns: the next job is that of the one who was served longest ago.

    work(record) does a record's job and returns the ids of the runs it made. kinds: the class of
    each kind of job, by which records are read again after a restart. client(): who is asking now,
    where that is known.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Mapping[str, type[Job]],
        work: Work,
        client: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self.folder, self._kinds, self._work, self._client = folder, kinds, work, client
        self._served: dict[Hashable, float] = {}  # when a client's last job began
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._queued = threading.Condition(self._lock)
        self._on_disk = threading.RLock()  # one record is written, or removed, at a time
        self._records: dict[str, JobRecord] = {}
        self._read()
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def submit(self, job: Job, title: str = "") -> JobRecord:
        """Put a job in the queue; of a kind that is wanted once, an equal one that waits or runs is
        returned instead. A job that yields waits for those that do not, also where it runs already,
        unless it computes what they need. title: the job's own by default. Raises Shortage where
        its record cannot be written, and InputError where too many jobs wait: it is then not
        queued.
        """
        with self._queued:
            if job.once:
                for record in self.waiting():
                    if record.job == job:
                        return record
            record, running = JobRecord(job, title, client=self._client()), self.running()
            self._check_room(record.client)
            self._records[record.id] = record
            if running is not None and goes_before(job, running.job):
                running.put_off.set()
            self._queued.notify()
        try:
            self._write(record)
        except lrcore.Shortage:
            if self._withdrawn(record):
                raise
        return record

    def _check_room(self, client: Hashable) -> None:
        waiting = [record.client for record in self.waiting()]
        own = waiting.count(client) if client is not None else 0
        if len(waiting) >= MOST or own >= OWN:
            many = f"{own} of your jobs" if own >= OWN else f"{len(waiting)} jobs"
            raise lrcore.InputError(
                f"{many} wait already. Cancel some under Compress, or try again once some are done."
            )

    def _withdrawn(self, record: JobRecord) -> bool:
        """Take a job out of the queue, unless it has begun; whether it is out."""
        with self._on_disk, self._lock:
            if record.state == "queued":
                self._records.pop(record.id, None)
            return record.id not in self._records

    def cancel(self, job_id: str) -> None:
        """Stop a job: a queued one leaves the queue at once, a running one stops after its present
        layer.
        """
        with self._on_disk, self._lock:
            record = self._records.get(job_id)
            if record is None or record.state in ENDED:
                return
            record.cancelled.set()
            record.note("cancel requested")
            if record.state == "queued":
                self._end(record, "cancelled")

    def again(self, job_id: str) -> JobRecord:
        """Queue the job of an ended record anew; the old record goes once the new one is on disk.

        What it had finished on disk is not computed twice. Raises InputError as `submit` does, and
        where it was started again already.
        """
        with self._on_disk, self._lock:
            old = self._records.get(job_id)
            if old is None or old.state not in ENDED:
                raise lrcore.InputError(
                    "This job was started again already, or has not ended: see the list of jobs."
                )
            del self._records[job_id]
        try:
            record = self.submit(old.job, old.title)
        except lrcore.Shortage:
            with self._lock:
                self._records[job_id] = old
            raise
        (self.folder / f"{job_id}.json").unlink(missing_ok=True)
        return record

    def forget(self, job_id: str) -> None:
        """Remove an ended record, from disk as well."""
        with self._on_disk, self._lock:
            if self._records.get(job_id) is not None and self._records[job_id].state in ENDED:
                del self._records[job_id]
                (self.folder / f"{job_id}.json").unlink(missing_ok=True)

    def read(self, job_id: str) -> None:
        """A person has read how a job ended: the status bar need not say it any longer."""
        record = self._records.get(job_id)
        if record is not None:
            record.was_read = True
            self._try_to_write(record)

    def get(self, job_id: str) -> JobRecord | None:
        return self._records.get(job_id)

    def all(self) -> list[JobRecord]:
        """Oldest first."""
        with self._lock:
            return sorted(self._records.values(), key=lambda record: record.created)

    def running(self) -> JobRecord | None:
        return next((record for record in self.all() if record.state == "running"), None)

    def waiting(self) -> list[JobRecord]:
        """The running job and those queued, in the order they will run."""
        with self._lock:
            left = [record for record in self.all() if record.state not in ENDED]
            running = [record for record in left if record.state == "running"]
            queued = [record for record in left if record.state != "running"]
            turns, served = turns_of(queued), self._served
            return running + sorted(
                queued,
                key=lambda one: (one.job.yields, turns[one.id], served.get(one.client, 0.0)),
            )

    def place(self, record: JobRecord) -> int:
        """How many jobs come before this one."""
        return next((i for i, other in enumerate(self.waiting()) if other.id == record.id), 0)

    def _run(self) -> None:
        give_way(JOBS)
        while True:
            with self._queued:
                while not self.waiting():
                    self._queued.wait()
                record = self.waiting()[0]
                self._note_turn(record.client)
                record.start()
            with heap.given_back():
                self._do(record)

    def _do(self, record: JobRecord) -> None:
        self._try_to_write(record)
        log.info("job %s: %s starts", record.id, record.title)
        try:
            with lrcore.cancellable(record.go_on):
                record.result = self._work(record)
            self._end(record, "done")
        except lrcore.Cancelled:
            with self._lock:
                again = record.put_off.is_set() and not record.cancelled.is_set()
                if again:
                    record.wait_again()
            if not again:
                self._end(record, "cancelled")
        except lrcore.InputError as error:
            self._end(record, "failed", str(error))
        except BaseException as error:  # one that ended the thread would end all later jobs
            self._end(record, "failed", self._fault(record, error))

    def _note_turn(self, client: Hashable) -> None:
        """Remember when a client was served; clients without jobs are forgotten."""
        there = {record.client for record in self.waiting()}
        self._served = {one: at for one, at in self._served.items() if one in there}
        self._served[client] = time.time()

    def _fault(self, record: JobRecord, error: BaseException) -> str:
        """What a person reads of an exception that is no InputError."""
        short = lrcore.shortage(error)
        if short is not None:
            return str(short)
        log.error("job %s failed", record.id, exc_info=error)
        line = (str(error).strip().splitlines() or [""])[0][:300]
        return f"{type(error).__name__}: {line} The server's log has the details."

    def _end(self, record: JobRecord, state: str, error: str = "") -> None:
        record.end(state, error)
        # First on disk: what is seen to have ended has ended after a restart as well.
        with self._on_disk:
            self._try_to_write(record, state)
            record.state = state

    def _try_to_write(self, record: JobRecord, state: str = "") -> None:
        """Write a record where there is room for it: without, the queue goes on all the same, and
        a restart reads what was written last.
        """
        try:
            self._write(record, state)
        except (lrcore.Shortage, OSError) as error:
            log.warning("job %s: its record is not on disk: %s", record.id, error)
            record.note(f"this record is not on disk: {error}")

    def _write(self, record: JobRecord, state: str = "") -> None:
        """Write a record as it is now; one that was forgotten in the meantime stays forgotten."""
        with self._on_disk:
            if record.kept and record.id in self._records:
                own = {"state": state or record.state, "server": self._server()}
                values = record.to_dict() | own
                lrcore.write_text(
                    self.folder / f"{record.id}.json", lrcore.json_text(values, nulls=True)
                )

    def _server(self) -> str:
        """The name of this process in records, by which another server of the same folder knows
        that it still runs; "" where that cannot be told.
        """
        try:
            return lrcore.folder_of_this_process(self.folder / SERVERS).name
        except OSError:
            return ""

    def _runs_elsewhere(self, server: str) -> bool:
        """Whether a record is of another process, which still runs."""
        there = bool(server) and lrcore.process_runs(self.folder / SERVERS / Path(server).name)
        return there and server != self._server()

    def _read(self) -> None:
        """The records that are there; those of jobs that another server has not ended are its
        own.
        """
        lrcore.remove_leftovers(self.folder)
        for path in sorted(self.folder.glob("*.json")):
            try:
                if not path.is_file():  # a pipe would be waited for
                    raise TypeError("it is no file")
                values = json.loads(path.read_text(encoding="utf-8"))
                record = JobRecord.from_dict(values, self._kinds)
                if record.id != path.stem:
                    raise ValueError("it has the name of another one")
                server = str(values.get("server", ""))
            except UNREADABLE as error:
                log.warning("%s is no job record and is left out: %s", path.name, error)
                continue
            if record.state not in ENDED and self._runs_elsewhere(server):
                log.info("job %s is one of another server, which runs", record.id)
                continue
            self._records[record.id] = record
            if record.state not in ENDED:
                record.state, record.ended = "interrupted", record.ended or time.time()
                record.note("interrupted: the server stopped while this job ran or was queued")
                self._try_to_write(record)
