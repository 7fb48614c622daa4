"""Start the workbench: `python app.py`, then open the address it prints."""

import argparse
import logging
import os

from workbench.app import LAUNCH, build_app

demo = build_app()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
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
    said = options.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("workbench").setLevel(logging.INFO)
    demo.launch(server_name=said.host, server_port=said.port, share=said.share, **LAUNCH)


if __name__ == "__main__":
    main()
