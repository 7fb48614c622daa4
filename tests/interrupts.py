"""Ctrl+C in processes started by a test."""

import signal


def hears_ctrl_c() -> None:
    """Restore SIGINT in the new process: background processes of a shell ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
