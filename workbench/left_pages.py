"""What the server keeps of pages that were left: Gradio would keep that of 10,000, near a megabyte
each, with all that was drawn in them.
"""

from datetime import datetime, timedelta

from gradio.state_holder import StateHolder

MOST = 300  # pages whose state is kept; the ones used longest ago go first
LEFT = timedelta(minutes=5)  # a page whose connection broke may come back


def drop(pages: StateHolder, now: datetime) -> None:
    """Forget the pages that were closed and not used since for LEFT."""
    with pages.lock:
        closed = [name for name, page in pages.session_data.items() if page.is_closed]
        for name in closed:
            if now - pages.time_last_used.get(name, now) >= LEFT:
                del pages.session_data[name]
                pages.time_last_used.pop(name, None)
