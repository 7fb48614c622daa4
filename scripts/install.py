"""Install requirement files into the environment of this Python: `python install.py -r FILE ...`.

By uv, which takes 10 s for what takes pip 50, and by pip where uv cannot be had or fails. uv does
not read pip's settings (a mirror, a folder of wheels, certificates); they are handed over here, so
that both find the same packages.
"""

import os
import subprocess
import sys

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def pip_settings() -> dict[str, str]:
    """What pip was told by its files and by the environment, which comes last and wins."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True)
    settings: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        if key.startswith(("global.", "install.", ":env:.")):
            settings[key.rpartition(".")[2]] = value.strip("'\"")
    return settings


def for_uv(settings: dict[str, str]) -> list[str]:
    """The same as flags of uv, to take the best version of all indexes, as pip does."""
    flags = ["--index-strategy", "unsafe-best-match"]
    names = {
        "index-url": "--default-index",
        "extra-index-url": "--index",
        "find-links": "--find-links",
        "trusted-host": "--allow-insecure-host",
    }
    for name, flag in names.items():
        for value in settings.get(name, "").replace("\\n", " ").split():
            flags += [flag, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        flags.append("--no-index")
    return flags


def by_uv(arguments: list[str]) -> bool:
    """Whether uv could be installed and did it. Without its cache, which would be a second copy."""
    if subprocess.run([*PIP, "install", "--quiet", "uv"], capture_output=True).returncode:
        return False
    settings = pip_settings()
    environment = dict(os.environ)
    if "cert" in settings:
        environment.setdefault("SSL_CERT_FILE", settings["cert"])
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    command += ["--quiet", "--no-cache", *for_uv(settings), *arguments]
    return subprocess.run(command, env=environment).returncode == 0


def main(arguments: list[str]) -> int:
    if by_uv(arguments):
        return 0
    # Bytecode is written where a module is imported, not for all that is installed.
    by_pip = [*PIP, "install", "--quiet", "--no-compile", *arguments]
    return subprocess.run(by_pip).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
