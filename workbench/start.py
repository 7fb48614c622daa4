"""Start the page: the command `low-rank-workbench`, and `python app.py`."""

import argparse
import logging
import os
from typing import Any


def main(page: Any = None) -> None:
    """Serve the page until it is stopped. page: what `build_app` returned; None: a new one."""
    options = argparse.ArgumentParser(description="Start the workbench, and print its address.")
    options.add_argument(
        "--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    )
    options.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        help="0.0.0.0 lets others in: no password",
    )
    options.add_argument(
        "--share", action="store_true", help="also open a public tunnel through Gradio's servers"
    )
    chosen = options.parse_args()
    from .app import LAUNCH, build_app  # seconds, which a wrong option need not wait for

    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("workbench").setLevel(logging.INFO)
    page = page or build_app()
    page.launch(server_name=chosen.host, server_port=chosen.port, share=chosen.share, **LAUNCH)
