"""The Chromium that scripts and the browser tests drive; CHROMIUM names another one."""

import os
import shutil

PATH = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
# it runs in containers, too, and asks nobody for anything
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
