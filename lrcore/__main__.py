"""The process of `python -m lrcore` and of the command `lrcore`."""

import signal
import sys


def run() -> int:
    """`cli.main`, with Ctrl+C at any moment answered as it is there: also before it is imported,
    and when it has its answer.
    """
    try:
        from .cli import main  # seconds, in which somebody may have thought better of it

        code = main()
    except KeyboardInterrupt:
        print("cancelled", file=sys.stderr)
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on there is nothing to put in order
    return code


if __name__ == "__main__":
    raise SystemExit(run())
