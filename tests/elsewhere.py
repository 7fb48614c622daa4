"""A process that cannot see this project: what a stranger has who was given an exported folder."""

import os
import subprocess
import sys


def elsewhere(script, *arguments, cwd):
    """Run a script where neither the working directory nor the path leads to this project."""
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf"), "TRANSFORMERS_VERBOSITY": "error"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
