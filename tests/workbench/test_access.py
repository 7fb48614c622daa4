"""Options and environment variables for access to the page."""

import argparse
import asyncio
import socket

import pytest

import lrcore
from lrcore.system.path_access import restrict_paths
from workbench.server import access
from workbench.server.host_names import HostNames

PASSWORD = "correct horse"


@pytest.fixture
def read(tmp_path, monkeypatch):
    def read_options(*flags, **environment):
        monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
        options = argparse.ArgumentParser()
        access.add_options(options)
        return access.read(options.parse_args(list(flags)), environment, tmp_path / "runs")

    return read_options


def test_a_local_server_needs_no_password_and_reads_all_files(read):
    assert read() == access.Access()
    assert read("--host", "::1").roots == ()
    assert read("--root", "models").roots[0].name == "models"


@pytest.mark.parametrize(
    "flags", [("--host", "0.0.0.0"), ("--host", "desk"), ("--name", "bench.example")]
)
def test_a_server_for_other_machines_requires_a_password_unless_disabled(read, flags, tmp_path):
    with pytest.raises(lrcore.InputError, match="Set LRCORE_PASSWORD or give --password-file"):
        read(*flags)
    assert read(*flags, LRCORE_PASSWORD=PASSWORD).password == PASSWORD
    assert PASSWORD not in repr(read(*flags, LRCORE_PASSWORD=PASSWORD))
    assert read(*flags, "--no-password").password == ""
    assert read(*flags, LRCORE_NO_PASSWORD="1").password == ""
    with pytest.raises(lrcore.InputError):
        read(*flags, LRCORE_NO_PASSWORD="0")
    assert read(*flags, "--no-password").roots == (tmp_path / "runs",)


def test_a_password_comes_from_a_file_or_the_environment(read, tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    assert read("--password-file", str(file)).password == PASSWORD
    with pytest.raises(lrcore.InputError, match="cannot be read"):
        read("--password-file", str(tmp_path / "none"))
    file.write_text("short\n")
    for flags, environment in ((("--password-file", str(file)), {}), ((), {"short": "short"})):
        with pytest.raises(lrcore.InputError, match="fewer than 8"):
            read(*flags, LRCORE_PASSWORD=environment.get("short", ""))


def test_a_space_needs_no_password(read):
    options = read("--host", "0.0.0.0", SPACE_ID="owner/name")
    assert options.names.accepts("owner-name.hf.space")
    assert options.roots


def test_names_and_folders_are_also_read_from_the_environment(read, tmp_path):
    options = read(
        "--root",
        "a",
        LRCORE_ROOTS="b:c",
        LRCORE_NAMES="one.example, two.example",
        LRCORE_PASSWORD=PASSWORD,
    )
    assert [root.name for root in options.roots] == ["a", "b", "c", "runs"]
    assert options.names == HostNames("127.0.0.1", ("one.example", "two.example"))


def test_a_wrong_password_is_refused_after_a_delay(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(access.asyncio, "sleep", sleep)
    right = access.login(PASSWORD)
    assert asyncio.run(right("anybody", PASSWORD))
    assert not waits
    for wrong in ("", PASSWORD[:-1], PASSWORD + " ", "ä"):
        assert not asyncio.run(right("anybody", wrong))
    assert waits == [access.WRONG_PASSWORD_DELAY] * 4


@pytest.mark.parametrize("port", ["0", "-1", "65536", "x", "1.5", "\u0661", "9" * 5000])
@pytest.mark.parametrize("where", ["--port", "GRADIO_SERVER_PORT"])
def test_an_invalid_port_is_reported(where, port, monkeypatch, capsys):
    from workbench.app import start

    flags = [f"--port={port}"] if where == "--port" else []
    monkeypatch.setenv("GRADIO_SERVER_PORT", "7860" if flags else port)
    monkeypatch.setattr("sys.argv", ["app.py", *flags])
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == 2
    assert (
        "is not a valid port; enter a whole number from 1 to 65535"
        in capsys.readouterr().err.splitlines()[-1]
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "192.0.2.1", "no.such.host.invalid", "a b", "x" * 99]
)
def test_an_address_that_cannot_be_bound_is_refused_before_the_page_is_built(host):
    from workbench.app import start

    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(lrcore.InputError, match=f"cannot listen on '{host}', port {port}"):
            start.check_port(host, port)
    start.check_port("127.0.0.1", port)


def test_an_empty_port_variable_is_removed_before_gradio_reads_it():
    from workbench.app import start

    environment = {"GRADIO_SERVER_PORT": ""}
    assert start.default_port(environment) == "7860"
    assert environment == {}
    assert start.default_port({"GRADIO_SERVER_PORT": "80"}) == "80"


def test_a_missing_home_folder_or_root_is_refused(read):
    with pytest.raises(lrcore.InputError, match="cannot be read"):
        read("--password-file", "~no_such_user/password")
    for roots in (["~no_such_user/models"], ["/no/such/place"]):
        with pytest.raises(lrcore.InputError):
            restrict_paths(roots)


def test_the_command_reports_a_missing_password(monkeypatch, capsys):
    from workbench.app import start

    monkeypatch.setattr("sys.argv", ["low-rank-workbench", "--name", "bench.example"])
    monkeypatch.delenv("LRCORE_PASSWORD", raising=False)
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("low-rank-workbench: error: Other machines can reach the page at 127")


def test_share_names_the_replacement(read):
    with pytest.raises(lrcore.InputError, match="cloudflared tunnel"):
        read("--share")
