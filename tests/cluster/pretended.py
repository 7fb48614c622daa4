"""Workers of a cluster within this process, in the place of Ray's: all that they are sent is
packed, they answer in another order than they are asked, and they die where a test says so.
"""

from lrcore.cluster.pool import Pool, Worker
from lrcore.units import HERE, worked_by


class Pretended:
    """See `pool.Engine`. dying: those of the units sent, counted from 0, whose worker dies with the
    result in its hands; another begins them again, as Ray does.
    """

    def __init__(self, count=2, dying=()):
        self.count, self.dying = count, set(dying)
        self.workers, self.sent, self.open, self.stopped = {}, [], {}, 0

    def share(self, payload):
        return payload

    def send(self, worker, handle, unit):
        assert worker not in [sent[0] for sent in self.open.values()], "it has a unit already"
        future = len(self.sent)
        self.sent.append(worker)
        self.open[future] = worker, handle, unit
        return future

    def answered(self, futures, seconds):
        assert sorted(futures) == sorted(self.open)
        return max(futures)

    def take(self, future):
        worker, handle, unit = self.open.pop(future)
        own = self.workers.setdefault(worker, Worker())
        with worked_by(HERE):
            if future in self.dying:
                own.run(handle, unit)
                own = self.workers[worker] = Worker()
            return own.run(handle, unit)

    def stop(self):
        self.open, self.workers = {}, {}
        self.stopped += 1


def on(engine):
    """Inside, units of work are done by the workers of an engine."""
    return worked_by(Pool(engine))
