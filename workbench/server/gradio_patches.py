"""Patches of Gradio: all code of the workbench that uses Gradio beyond its public API.

The patches depend on the version of Gradio, which is therefore pinned exactly.
docs/benchmarks/page.md lists the measured gain of each patch, and
tests/workbench/test_gradio_patches.py fails once a patch is not needed.

1. `CheckedBlocks` checks the values of an event before its listener runs. Gradio has no hook for
   this, and its checks answer with tracebacks.
2. `limit_queue` limits the waiting events per page, and drops the answers and the state of closed
   pages. Gradio's `max_size` is a limit for all pages together, so a single page could fill the
   queue. Gradio also stores up to a megabyte for each of thousands of closed pages. A page that
   closes while it opens its stream of answers again has two streams. Each removes the answers of
   the page, and in Gradio the second one fails: see `AnswersByPage`.
3. `QueuePace` lets an idle queue sleep longer. Gradio's queue wakes a thousand times a second.
4. `FirstScripts` stops the clock of Gradio's loading sign, which redraws an idle page 40 to 60
   times a second, and loads the scripts of the page as a file.
5. `CheckedBlocks` leaves out of the description of the page what no browser and no client reads,
   frames around fields, and all states but one. The browser parses and copies the description when
   a page opens, and each event takes time in proportion to the number of components.
6. `add_endpoints` uses a component for several arguments. `gr.api` makes one for each.
"""

import asyncio
import copy
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import gradio as gr
from gradio.blocks import BlockFunction
from gradio.components.api_component import Api
from gradio.queueing import Queue
from gradio.state_holder import SessionState, StateHolder
from gradio.utils import LRUCache
from gradio_client.utils import python_type_to_json_schema

from ..base.assets import script
from ..widgets.fields import entered_values
from .input_checks import check_event, check_value, invalid_value

MAX_EVENTS = 1000  # waiting events of all pages
# Waiting or running events of one page: fewer than the server's 40 threads, which one page could
# otherwise occupy. A page that opens has about a dozen at once.
MAX_PAGE_EVENTS = 30
TOO_MANY = "{} events of this page are waiting already. Try again when some are done."
ANSWER_TIMEOUT = 300.0  # seconds until an answer that no page fetched is dropped
MAX_PAGES = 300  # pages whose state is stored
PAGE_TIMEOUT = timedelta(minutes=5)  # time in which a page can reconnect and find its state
# Seconds between two checks of the queue: Gradio's millisecond while events arrive, since an event
# waits for the next check; longer at rest, where a millisecond would cost 1/15 of a core.
ACTIVE_INTERVAL, IDLE_INTERVAL = 0.001, 0.02
PROGRESS_INTERVAL = 1.0  # seconds between two checks of gr.Progress, which this page does not use
IDLE_AFTER = 1.0  # seconds without an event
# Components whose values reach listeners without Gradio's conversion. The conversion would also
# refuse numbers out of range; listeners do that with a message that names the range.
RAW = (gr.HTML, gr.JSON, gr.Checkbox, gr.Slider, gr.Number, gr.Textbox, gr.Dropdown, gr.Radio)


CLOCK_SCRIPT = f"<script>{script('loading-clock.js')}</script>"
# Fields of components and listeners in the description of a page that have no effect on a page
# without custom components and keys; UNLESS_PUBLIC: only clients read them.
UNREAD = ("component_class_id", "key")
UNLESS_PUBLIC = ("api_info", "api_info_as_input", "api_info_as_output", "example_inputs")
# properties whose absence has the same meaning as these values
DEFAULTS: dict[str, Any] = {
    "_retryable": False,
    "_undoable": False,
    "component_class_name": "HTML",
    "likeable": False,
    "streamable": False,
}
LISTENER_DEFAULTS: dict[str, Any] = {
    "api_description": None,
    "batch": False,
    "collects_event_data": False,
    "component_prop_inputs": [],
    "event_specific_args": [],
    "js_implementation": None,
    "max_batch_size": 4,
    "render_id": None,
    "rendered_in": None,
    "scroll_to_output": False,
    "stream_every": 0.5,
    "time_limit": None,
    "trigger_after": None,
    "trigger_only_on_failure": False,
    "trigger_only_on_success": False,
}


class CheckedBlocks(gr.Blocks):
    """gr.Blocks whose listeners get checked values."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.unqueued: Counter[str] = Counter()  # running events outside the queue, by page
        self.state_session_capacity = MAX_PAGES

    def get_config_file(self) -> Any:
        """Return the description of the page without unread fields and defaults."""
        config = super().get_config_file()
        public = {
            component._id
            for listener in self.fns.values()
            if listener.api_visibility != "private"
            for component in (*listener.inputs, *listener.outputs)
        }
        for part in config["components"]:
            for name in UNREAD if part["id"] in public else (*UNREAD, *UNLESS_PUBLIC):
                part.pop(name, None)
            part["props"].pop("preserved_by_key", None)
            _drop(part["props"], DEFAULTS)
        for listener in config["dependencies"]:
            _drop(listener, LISTENER_DEFAULTS)
        _drop_forms(config)
        _merge_states(config)
        return config

    async def process_api(
        self, block_fn: BlockFunction | int, inputs: list[Any], *args: Any, **options: Any
    ) -> dict[str, Any]:
        """Check an event, and count it if it did not come through the queue."""
        check_event(block_fn, inputs, getattr(options.get("event_data"), "_data", None))
        is_queued = options.get("event_id") is not None
        with nullcontext() if is_queued else self._counted(options.get("session_hash") or ""):
            return await super().process_api(block_fn, inputs, *args, **options)

    async def preprocess_data(
        self,
        block_fn: BlockFunction,
        inputs: list[Any],
        state: SessionState | None,
        explicit_call: bool = False,
    ) -> list[Any]:
        """Return the arguments of a listener.

        Raises gr.Error with a sentence for a value that its component cannot hold.
        """
        for component, value in zip(block_fn.inputs, inputs, strict=False):
            check_value(component, value, state)
        stateful = [c for c in block_fn.inputs if getattr(c, "stateful", False)]
        if all(isinstance(c, RAW) or c in stateful for c in block_fn.inputs):
            block_fn = copy.copy(block_fn)
            block_fn.preprocess = False
        try:
            arguments = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        except Exception as error:
            raise invalid_value(error) from None
        return [
            _argument(component, value)
            for component, value in zip(block_fn.inputs, arguments, strict=True)
        ]

    def _counted(self, page: str) -> "_CountedEvent":
        return _CountedEvent(self.unqueued, page)


def _drop_forms(config: Any) -> None:
    """Remove the frames that Gradio puts around neighboring fields; the fields take their place."""
    _remove(config, {part["id"] for part in config["components"] if part["type"] == "form"})


def _merge_states(config: Any) -> None:
    """Describe all states by the first one.

    Their values are on the server: the page sends null in their place, and learns the numbers of
    the states that changed.
    """
    states = [part["id"] for part in config["components"] if part["type"] == "state"]
    for listener in config["dependencies"]:
        for name in ("inputs", "outputs"):
            listener[name] = [
                states[0] if number in states else number for number in listener[name]
            ]
    _remove(config, {*states[1:]})


def _remove(config: Any, numbers: Set[int]) -> None:
    """Remove components from the description of a page; their contents take their place."""

    def without(node: dict[str, Any]) -> list[dict[str, Any]]:
        children = [part for child in node.get("children") or () for part in without(child)]
        if node["id"] in numbers:
            return children
        return [node | {"children": children} if children else node]

    for page in (config, *config["page"].values()):
        (page["layout"],) = without(page["layout"])
    config["components"] = [part for part in config["components"] if part["id"] not in numbers]
    for page in config["page"].values():
        page["components"] = [part for part in page["components"] if part not in numbers]


def _drop(fields: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Remove the fields that have these values."""
    for name, value in values.items():
        if name in fields and fields[name] == value:
            del fields[name]


def _argument(component: Any, value: Any) -> Any:
    """Return the argument of a listener for the value of a component."""
    if getattr(component, "fields", None):
        return entered_values(value)
    # the browser sends None for a text box until it was drawn
    return "" if value is None and isinstance(component, gr.Textbox) else value


class _CountedEvent:
    """Context manager that counts an event of a page while it waits for a thread and runs.

    Raises gr.Error if the page, or all pages together, have too many.
    """

    def __init__(self, counts: Counter[str], page: str) -> None:
        self.counts, self.page = counts, page

    def __enter__(self) -> None:
        count = self.counts[self.page] if self.page else 0  # a script has no page
        if count >= MAX_PAGE_EVENTS or self.counts.total() >= MAX_EVENTS:
            raise gr.Error(TOO_MANY.format(count), print_exception=False)
        self.counts[self.page] += 1

    def __exit__(self, *_: object) -> None:
        self.counts[self.page] -= 1
        if not self.counts[self.page]:
            del self.counts[self.page]


def add_endpoints(listeners: Mapping[str, Callable]) -> None:
    """Add endpoints to the page that is being built, like `gr.api`.

    Arguments and results of equal type and default share a component. listeners: by the name of the
    endpoint; they take the request first.
    """
    values: dict[tuple[str, str], Api] = {}

    def component(annotation: Any, default: Any) -> Api:
        value = None if default is inspect.Parameter.empty else default
        key = (repr(annotation), repr(value))
        if key not in values:
            values[key] = Api(value, python_type_to_json_schema(annotation), label="value")
        return values[key]

    for name, listener in listeners.items():
        signature = inspect.signature(listener)
        _, *arguments = signature.parameters.values()  # without the request
        gr.on(
            [],
            listener,
            [component(argument.annotation, argument.default) for argument in arguments],
            component(signature.return_annotation, None),
            preprocess=False,
            postprocess=False,
            show_progress="hidden",
            api_name=name,
            concurrency_limit=4,
        )


def limit_queue(blocks: gr.Blocks) -> None:
    """Limit the events of each page in the queue, and drop the data of closed pages.

    An event beyond the limit is refused with a message (HTTP 503).
    """
    queue = blocks.queue(max_size=MAX_EVENTS)._queue
    # Gradio computes a table of its last events after each event, for a dashboard that this page
    # does not have; it costs about 40 ms.
    queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize
    queue.ANALYTICS_MAX_EVENTS = 1
    queue.progress_update_sleep_when_free = PROGRESS_INTERVAL
    queue.pending_messages_per_session = AnswersByPage(queue.pending_messages_per_session.max_size)
    push, answers, pace = queue.push, UnreadAnswers(queue), QueuePace(queue)

    async def limited_push(body: Any, **options: Any) -> Any:
        await answers.drop_old(time.monotonic())
        drop_closed_pages(queue.blocks.state_holder, datetime.now())
        count = events_of(queue, body.session_hash)
        if count >= MAX_PAGE_EVENTS:
            return False, TOO_MANY.format(count), "queue_full"
        pace.speed_up()
        return await push(body, **options)

    queue.push = limited_push


def events_of(queue: Queue, page: str | None) -> int:
    """Return the number of unfinished events of a page; 0 for a script, which has no page."""
    if page is None:
        return 0
    return sum(event.session_hash == page for event in [*queue.event_ids_to_events.values()])


def drop_closed_pages(pages: StateHolder, now: datetime) -> None:
    """Drop the state of pages that were closed and not used for `PAGE_TIMEOUT`."""
    with pages.lock:
        closed = [name for name, page in pages.session_data.items() if page.is_closed]
        for name in closed:
            if now - pages.time_last_used.get(name, now) >= PAGE_TIMEOUT:
                del pages.session_data[name]
                pages.time_last_used.pop(name, None)


class AnswersByPage(LRUCache):
    """The waiting answers of each page. It is no error to remove a page that is not there."""

    def __delitem__(self, page: str) -> None:
        if page in self:
            super().__delitem__(page)


class UnreadAnswers:
    """Answers that wait for a page to fetch them."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        # by page: the oldest answer, and the time when `drop_old` first saw it
        self._oldest: dict[str, tuple[Any, float]] = {}

    async def drop_old(self, now: float) -> None:
        """Drop answers that waited for `ANSWER_TIMEOUT`, with all events of their pages.

        now: seconds of a monotonic clock.
        """
        pending = self.queue.pending_messages_per_session
        oldest = {page: q._queue[0] for page, q in pending.items() if q.qsize()}
        for page, message in oldest.items():
            previous, since = self._oldest.get(page, (None, now))
            self._oldest[page] = message, since if previous is message else now
        self._oldest = {page: seen for page, seen in self._oldest.items() if page in oldest}
        limit = now - ANSWER_TIMEOUT
        for page in [page for page, (_, since) in self._oldest.items() if since <= limit]:
            await self.queue.clean_events(session_hash=page)
            self.queue.pending_event_ids_session.pop(page, None)
            pending.pop(page, None)
            del self._oldest[page]


class QueuePace:
    """The interval between two checks of a queue: short while events arrive."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._timer: asyncio.TimerHandle | None = None
        self.slow_down()

    def speed_up(self) -> None:
        """Check often until no event arrived for `IDLE_AFTER` seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self.queue.sleep_when_free = ACTIVE_INTERVAL
        self._timer = asyncio.get_running_loop().call_later(IDLE_AFTER, self.slow_down)

    def slow_down(self) -> None:
        self.queue.sleep_when_free = IDLE_INTERVAL


class FirstScripts:
    """ASGI middleware inside Gradio's app that inserts scripts into a page, before all others.

    One of them replaces `requestAnimationFrame`. Gradio's scripts store the function when they
    load, so it must run before them; the `head` of `gr.mount_gradio_app` runs after them. It is
    also part of the description of the page, and a script in it that names a file is loaded too
    late. files: addresses of further scripts.
    """

    def __init__(self, app: Any, files: Sequence[str]) -> None:
        self.app = app
        tags = "".join(f'<script src="{address}"></script>' for address in files)
        self.head = f"<head>{CLOCK_SCRIPT}{tags}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        start: Any = None
        body = b""

        async def send_page(message: Any) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_page(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                page = body.replace(b"<head>", self.head, 1)
                headers = [(n, v) for n, v in start["headers"] if n.lower() != b"content-length"]
                headers.append((b"content-length", str(len(page)).encode()))
                await send(start | {"headers": headers})
                await send(message | {"body": page})

        await self.app(scope, receive, send_page if scope["type"] == "http" else send)


def _is_page(message: Any) -> bool:
    headers = {name.lower(): value for name, value in message.get("headers", ())}
    return headers.get(b"content-type", b"").startswith(b"text/html")
