"""Start the page: the command `low-rank-workbench`, and `python app.py`."""

import argparse
import atexit
import logging
import os
import socket
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

import lrcore

from . import access

STORAGE = Path("/data")  # where a Space has its storage, if it has any
KEPT = {"LRCORE_RUNS": "runs", "HF_HOME": ".huggingface"}


def keep_in_storage(environment: MutableMapping[str, str], storage: Path = STORAGE) -> None:
    """In a Space that has storage, keep runs and what the hub gives there: all else is gone when it
    starts again. To be called before those variables are read; what they say already stays.

    The cache stays where it was, since its limit is as large as the smallest storage.
    """
    if environment.get("SPACE_ID") and os.access(storage, os.W_OK):
        for name, folder in KEPT.items():
            environment.setdefault(name, str(storage / folder))


def port(text: str) -> int:
    """A port from an option. Raises ArgumentTypeError for what is none."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not 0 < number < 2**16:
        raise argparse.ArgumentTypeError(f"a port is a whole number from 1 to 65535; got '{text}'")
    return number


def named_port(environment: MutableMapping[str, str]) -> str:
    """The port that the environment names, or the usual one; an empty name, at which Gradio fails
    when it is imported, is taken out.
    """
    if not environment.get("GRADIO_SERVER_PORT"):
        environment.pop("GRADIO_SERVER_PORT", None)
    return environment.get("GRADIO_SERVER_PORT", "7860")


def check_free(host: str, port: int) -> None:
    """Raise InputError where nobody can listen on an address, seconds before Gradio would find
    out.
    """
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, place in places:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
    except (OSError, UnicodeError) as error:  # Unicode: no name of a host
        reason = getattr(error, "strerror", None) or "it is no name of a host"
        raise lrcore.InputError(
            f"The page cannot listen on '{host[:100]}', port {port}: {reason}. Another "
            "program may have the port: give a free one (--port), or another address (--host)."
        ) from error


def main() -> None:
    """Serve the page until it is stopped."""
    keep_in_storage(os.environ)
    options = argparse.ArgumentParser(description="Start the workbench, and print its address.")
    options.add_argument("--port", type=port, default=named_port(os.environ))
    access.add_options(options)
    chosen = options.parse_args()
    try:
        allowed = access.read(chosen, os.environ, lrcore.runs_root())
        lrcore.confine(allowed.roots)
        check_free(chosen.host, chosen.port)
    except lrcore.InputError as error:
        options.error(str(error))
    os.environ.pop("LRCORE_PASSWORD", None)  # no program that is started needs it
    # seconds, which a wrong option need not wait for
    from . import heap
    from .app import build_app, launch_settings

    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("workbench").setLevel(logging.INFO)
    try:
        with heap.staying():
            page = build_app()
    except lrcore.InputError as error:  # of the runs
        options.error(str(error))
    page.launch(
        server_name=chosen.host,
        server_port=chosen.port,
        share=chosen.share,
        **launch_settings(allowed.names, allowed.password),
    )
    if page.server.should_exit:  # elsewhere, as in a notebook, it goes on
        leave()


def leave() -> None:
    """End the process, whatever its threads do: an interpreter that is torn down while they compute
    aborts. What they write is whole or not at all, and their jobs are offered again.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # closed, or read by nobody
            stream.flush()
    os._exit(0)
