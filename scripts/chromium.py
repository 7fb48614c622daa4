"""Path, flags and an initial script of Chromium for scripts and tests; CHROMIUM sets the path."""

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
# Initial script of a page: without the welcome of a first visit (see assets/guidance.js).
VISITED = "localStorage.setItem('lrw-visited', '1')"
