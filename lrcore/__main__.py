"""Entry point of `python -m lrcore` and of the command `lrcore`."""

import signal
import sys


def run() -> int:
    """Run `cli.main`, and handle Ctrl+C during its import and after its end as it does."""
    try:
        from .cli import main  # takes seconds

        code = main()
    except KeyboardInterrupt:
        print("canceled", file=sys.stderr)
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no cleanup is needed from here on
    return code


if __name__ == "__main__":
    raise SystemExit(run())
