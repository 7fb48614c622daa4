"""How much may wait in Gradio's queue: of all pages together, and of one of them."""

import sys
from typing import Any

from gradio.queueing import Queue

MOST = 1000  # events that wait, of all pages
# Of one page, waiting or running: less than the 40 threads of a server, all of which one page could
# otherwise hold. A page that opens has a dozen at once.
OWN = 30
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
    push = queue.push

    async def pushed(body: Any, **given: Any) -> Any:
        own = waiting(queue, body.session_hash)
        if own >= OWN:
            return False, FULL.format(own), "queue_full"
        return await push(body, **given)

    queue.push = pushed  # type: ignore[method-assign]


def waiting(queue: Queue, session: str | None) -> int:
    """The events of a page that have not ended; 0 without a session."""
    if session is None:
        return 0
    return sum(one.session_hash == session for one in [*queue.event_ids_to_events.values()])
