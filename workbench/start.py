"""Start the page: the command `low-rank-workbench`, and `python app.py`."""

import argparse
import logging
import os
from typing import Any

import lrcore

from . import access


def main(page: Any = None) -> None:
    """Serve the page until it is stopped. page: what `build_app` returned; None: a new one."""
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
    from .app import build_app, launch_settings  # seconds, which a wrong option need not wait for

    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("workbench").setLevel(logging.INFO)
    page = page or build_app()
    page.launch(
        server_name=chosen.host,
        server_port=chosen.port,
        share=chosen.share,
        **launch_settings(allowed.names, allowed.password),
    )
