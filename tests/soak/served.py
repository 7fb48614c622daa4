"""Program that runs a job in a store, as a server does, and ends with SIGKILL at its n-th event.

python served.py KIND N JOB: JOB is a file with the stored form of a job. Interrupted jobs of
earlier servers are restarted; without a record, the job is queued. KIND and N are those of
killed.py; calls are counted for that kind only. Prints the final states of the jobs, and the runs.
"""

import json
import sys
import threading
import time
from pathlib import Path

from killed import Killer

PATIENCE = 300  # seconds


def ended(store, record) -> None:
    from workbench.state.job_record import ENDED

    end = time.monotonic() + PATIENCE
    while record.state not in ENDED:
        assert time.monotonic() < end, record
        time.sleep(0.002)


def serve(job: Path) -> dict:
    """Run the pending jobs, and return the states of all records and the runs."""
    from workbench.jobs import KINDS
    from workbench.state.store import Store

    store = Store(Path("runs"), KINDS)
    records = store.jobs.all()
    assert all(record.state in ("done", "interrupted") for record in records), records
    interrupted = [record for record in records if record.state == "interrupted"]
    if records:
        started = [store.jobs.restart(record.id) for record in interrupted]
    else:
        values = json.loads(job.read_text(encoding="utf-8"))
        started = [store.jobs.submit(KINDS[values["kind"]].from_dict(values))]
    for record in started:
        ended(store, record)
    runs = [[run.name, run.ranks_csv, run.evaluations] for run in store.runs.all()]
    return {"states": [[record.state, record.error] for record in store.jobs.all()], "runs": runs}


def run(kind: str, at: int, job: Path) -> None:
    files, calls = (Killer(at if kind == event_kind else 0) for event_kind in ("files", "calls"))
    sys.addaudithook(files.audit)
    if kind == "calls":
        threading.setprofile(calls.count)  # affects threads started later
    result = serve(job)
    threading.setprofile(None)
    print(json.dumps(result))
    print(files.seen, calls.seen, file=sys.stderr)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
