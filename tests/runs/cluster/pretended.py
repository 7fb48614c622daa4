"""Simulated cluster workers in this process, in place of Ray. All data are pickled, answers arrive
in a different order than the requests, and workers die when a test requires it.
"""

from lrcore.runs.cluster.pool import Pool, Worker
from lrcore.system.units import HERE, worked_by


class Pretended:
    """Implementation of `pool.Engine`.

    dying: indices of the units, in order of sending, with a worker that dies after the result; a
    new worker repeats them, as in Ray.
    """

    def __init__(self, count=2, dying=()):
        self.count, self.dying = count, set(dying)
        self.workers, self.sent, self.open, self.stopped = {}, [], {}, 0

    def share(self, payload):
        return payload

    def send(self, worker, handle, unit):
        assert worker not in [sent[0] for sent in self.open.values()], (
            "the worker already has a unit"
        )
        future = len(self.sent)
        self.sent.append(worker)
        self.open[future] = worker, handle, unit
        return future

    def first_finished(self, futures, seconds):
        assert sorted(futures) == sorted(self.open)
        return max(futures)

    def result(self, future):
        worker, handle, unit = self.open.pop(future)
        process = self.workers.setdefault(worker, Worker())
        with worked_by(HERE):
            if future in self.dying:
                process.run(handle, unit)
                process = self.workers[worker] = Worker()
            return process.run(handle, unit)

    def stop(self):
        self.open, self.workers = {}, {}
        self.stopped += 1


def on(engine):
    """Run units of work on the workers of an engine within the context."""
    return worked_by(Pool(engine))
