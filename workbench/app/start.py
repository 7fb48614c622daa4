"""Start of the page: the command `low-rank-workbench`, and `python app.py`."""

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
from lrcore.runs.runs import runs_folder
from lrcore.system.path_access import restrict_paths

from ..server import access

STORAGE = Path("/data")  # the persistent storage of a Space
STORED = {"LRCORE_RUNS": "runs", "HF_HOME": ".huggingface"}  # folders in it, by variable


def keep_in_storage(environment: MutableMapping[str, str], storage: Path = STORAGE) -> None:
    """In a Space with storage, keep runs and downloads of the hub there.

    Everything else is lost when the Space restarts. Call it before these variables are read;
    variables that are set already stay. The cache is not moved, because its limit is as large as
    the smallest storage.
    """
    if environment.get("SPACE_ID") and os.access(storage, os.W_OK):
        for name, folder in STORED.items():
            environment.setdefault(name, str(storage / folder))


def port(text: str) -> int:
    """Return a port. Raises ArgumentTypeError for an invalid one."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not 0 < number < 2**16:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a valid port; enter a whole number from 1 to 65535"
        )
    return number


def default_port(environment: MutableMapping[str, str]) -> str:
    """Return the port of the environment, or 7860.

    An empty variable is removed, because importing Gradio would fail.
    """
    if not environment.get("GRADIO_SERVER_PORT"):
        environment.pop("GRADIO_SERVER_PORT", None)
    return environment.get("GRADIO_SERVER_PORT", "7860")


def check_port(host: str, port: int) -> None:
    """Raise InputError if the server cannot listen on a host and port.

    The server would raise the same error, but only after the seconds that importing Gradio takes.
    """
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
        reason = getattr(error, "strerror", None) or "it is not a valid host name"
        raise lrcore.InputError(
            f"The page cannot listen on '{host[:100]}', port {port}: {reason}. Another program may "
            "use the port: give a free one (--port, or GRADIO_SERVER_PORT=7861 make run), or "
            "another address (--host)."
        ) from error


def main() -> None:
    """Serve the page until the process is stopped."""
    keep_in_storage(os.environ)
    parser = argparse.ArgumentParser(description="Start the workbench and print its address.")
    usual = default_port(os.environ)
    help_text = "the default is %(default)s, or GRADIO_SERVER_PORT"
    parser.add_argument("--port", type=port, default=usual, help=help_text)
    access.add_options(parser)
    options = parser.parse_args()
    try:
        allowed = access.read(options, os.environ, runs_folder())
        restrict_paths(allowed.roots)
        check_port(options.host, options.port)
    except lrcore.InputError as error:
        parser.error(str(error))
    os.environ.pop("LRCORE_PASSWORD", None)  # child processes do not need it
    # These imports take seconds; a wrong option is reported before them.
    print("Starting the workbench.", flush=True)
    from ..base import process
    from ..server.web_app import page_server, web_app
    from .app import build_app

    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("workbench").setLevel(logging.INFO)
    try:
        with process.permanent_objects():
            page = build_app()
    except lrcore.InputError as error:  # the folder of runs cannot be used
        parser.error(str(error))
    app = web_app(page, allowed.names, allowed.password)
    with suppress(KeyboardInterrupt):  # uvicorn repeats the Ctrl-C that ended it
        page_server(app, options.host.strip("[]"), options.port).run()
    end_process()


def end_process() -> None:
    """End the process at once, even while a job computes.

    If Python tears the interpreter down while torch computes in another thread, the process aborts.
    Files are written atomically, and an interrupted job is offered again.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # the stream, or its reader, is closed
            stream.flush()
    os._exit(0)
