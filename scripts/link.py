"""Link the clone into the current environment: `import lrcore` in every folder, command `lrcore`.

An editable installation would do the same, but takes several seconds and writes into the clone.
"""

import sys
import sysconfig
from pathlib import Path

# `exec` by the shell, since the first line of a script cannot name a path with a space.
COMMAND = """#!/bin/sh
'''exec' '{python}' "$0" "$@"
' '''
from lrcore.__main__ import run

raise SystemExit(run())
"""


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    Path(sysconfig.get_path("purelib"), "lrcore.pth").write_text(f"{root}\n")
    command = Path(sysconfig.get_path("scripts"), "lrcore")
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
