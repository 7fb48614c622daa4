"""How much may wait in Gradio's queue or beside it, of all pages together and of one of them, how
long answers wait for a page that does not fetch them, and how soon the queue takes an event.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import gradio as gr
from gradio.queueing import Queue

from . import left_pages

MOST = 1000  # events that wait, of all pages
# Of one page, waiting or running: less than the 40 threads of a server, all of which one page could
# otherwise hold. A page that opens has a dozen at once.
OWN = 30
UNREAD = 300.0  # seconds that answers wait: a page that is there fetches them as they come
# Seconds between two looks of the queue at itself: Gradio's own millisecond while events come, for
# an event waits until the next look. That would cost a server at rest a fifteenth of a core; the
# other costs a two-hundredth, and the first event after a rest 10 ms on average.
AWAKE, IDLE = 0.001, 0.02
# Seconds between two looks for what `gr.Progress` has to tell, which nothing of this page uses:
# Gradio's own 0.01 cost a server at rest a hundredth of a core.
TOLD = 1.0
# Seconds without an event after which the queue is at rest. A page at rest asks every 15 s whether
# an answer got lost: with 3 s that alone cost a hundredth.
PAUSE = 1.0
FULL = "{} events of this page wait already. Try again once some are done."


def limit(queue: Queue) -> None:
    """Let a queue take so many events; what comes on top is answered with a sentence (503).

    What comes without a session, a script's single call, counts for all pages together alone.
    """
    queue.max_size = MOST
    # Gradio makes a table of its last 10,000 events after each event, for a dashboard that this
    # page does not have: 35 to 40 ms of the processor with 100 of them as with all.
    queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize
    queue.ANALYTICS_MAX_EVENTS = 1
    queue.progress_update_sleep_when_free = TOLD
    push, unread, pace = queue.push, Unread(queue), Pace(queue)

    async def pushed(body: Any, **given: Any) -> Any:
        await unread.drop(time.monotonic())
        left_pages.drop(queue.blocks.state_holder, datetime.now())
        own = waiting(queue, body.session_hash)
        if own >= OWN:
            return False, FULL.format(own), "queue_full"
        pace.quicken()
        return await push(body, **given)

    queue.push = pushed  # type: ignore[method-assign]


def waiting(queue: Queue, session: str | None) -> int:
    """The events of a page that have not ended; 0 without a session."""
    if session is None:
        return 0
    return sum(one.session_hash == session for one in [*queue.event_ids_to_events.values()])


class Beside:
    """The events past the queue (`events.MOVING`) that have not ended."""

    def __init__(self) -> None:
        self._asked: Counter[str | None] = Counter()

    @contextmanager
    def place(self, session: str | None) -> Iterator[None]:
        """For as long as an event waits for a thread and runs. Raises gr.Error where its page, or
        all of them, have as many as they may.
        """
        own = 0 if session is None else self._asked[session]
        if own >= OWN or self._asked.total() >= MOST:
            raise gr.Error(FULL.format(own), print_exception=False)
        self._asked[session] += 1
        try:
            yield
        finally:
            self._asked[session] -= 1
            if not self._asked[session]:
                del self._asked[session]


class Pace:
    """How often a queue looks at itself."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._rest: asyncio.TimerHandle | None = None
        self.slow()

    def quicken(self) -> None:
        """For as long as events come, and PAUSE seconds."""
        if self._rest is not None:
            self._rest.cancel()
        self.queue.sleep_when_free = AWAKE
        self._rest = asyncio.get_running_loop().call_later(PAUSE, self.slow)

    def slow(self) -> None:
        self.queue.sleep_when_free = IDLE


class Unread:
    """Answers for pages that have vanished before they fetched them: Gradio would keep those of
    2,000 pages, each of which is all that was drawn.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._first: dict[str, tuple[Any, float]] = {}  # the oldest answer of a page, seen first at

    async def drop(self, now: float) -> None:
        """Drop what has waited for UNREAD seconds, and the events of such pages. now: seconds of a
        clock that only goes on.
        """
        kept = self.queue.pending_messages_per_session
        oldest = {name: each._queue[0] for name, each in kept.items() if each.qsize()}  # type: ignore[attr-defined]
        for name, message in oldest.items():
            known, since = self._first.get(name, (None, now))
            self._first[name] = message, since if known is message else now
        self._first = {name: one for name, one in self._first.items() if name in oldest}
        for name in [name for name, (_, since) in self._first.items() if now - since >= UNREAD]:
            await self.queue.clean_events(session_hash=name)
            self.queue.pending_event_ids_session.pop(name, None)
            kept.pop(name, None)
            del self._first[name]
