"""Start the page: the command `low-rank-workbench`, and `python app.py`."""

import argparse
import atexit
import logging
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

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


def main(page: Any = None) -> None:
    """Serve the page until it is stopped. page: what `build_app` returned; None: a new one."""
    keep_in_storage(os.environ)
    options = argparse.ArgumentParser(description="Start the workbench, and print its address.")
    options.add_argument(
        "--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    )
    access.add_options(options)
    chosen = options.parse_args()
    try:
        allowed = access.read(chosen, os.environ, lrcore.runs_root())
        lrcore.confine(allowed.roots)
    except lrcore.InputError as error:
        options.error(str(error))
    os.environ.pop("LRCORE_PASSWORD", None)  # no program that is started needs it
    # seconds, which a wrong option need not wait for
    from . import heap
    from .app import build_app, launch_settings

    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("workbench").setLevel(logging.INFO)
    with heap.staying():
        page = page or build_app()
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
        stream.flush()
    os._exit(0)
