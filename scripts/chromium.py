"""Path and flags of Chromium for scripts and browser tests; CHROMIUM overrides the path."""

import os
import shutil

PATH = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
# It must run in containers, without dialogs.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
