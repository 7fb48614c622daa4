"""Install requirement files into the current environment: `python install.py -r FILE ...`.

uv needs 10 s and pip 50 s; pip is used if uv is not available or fails. uv does not read pip's
settings (a mirror, a folder of wheels, certificates), so they are passed as flags and both find the
same packages.
"""

import os
import subprocess
import sys

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def pip_settings() -> dict[str, str]:
    """Return pip's settings from files and from the environment, which has precedence."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True)
    settings: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        if key.startswith(("global.", "install.", ":env:.")):
            settings[key.rpartition(".")[2]] = value.strip("'\"")
    return settings


def for_uv(settings: dict[str, str]) -> list[str]:
    """Return pip's settings as flags of uv, which then searches all indexes, as pip does."""
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
    """Install with uv, without a cache; return False if uv is not available or fails."""
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
    # Bytecode is compiled on import, not for all installed modules.
    by_pip = [*PIP, "install", "--quiet", "--no-compile", *arguments]
    return subprocess.run(by_pip).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
