"""Ctrl+C in a process that a test starts."""

import signal


def hears_ctrl_c() -> None:
    """To be called in the new process: what a shell runs in the background is deaf to Ctrl+C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
