"""Requests to a hub: only for the repository that was named, and none for an invalid name."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fresh
import pytest
from loopback_hub import serve

# Looks up names and connects as ever, and notes where to.
WATCH = """
import contextlib, io, json, socket, sys
from lrcore import InputError
asked = []

def noted(what):
    def call(*given, **more):
        place = next((one for one in given if isinstance(one, (tuple, str))), "")
        asked.append(str(place[0] if isinstance(place, tuple) else place))
        return what(*given, **more)
    return call

socket.getaddrinfo = noted(socket.getaddrinfo)
class Watched(socket.socket):
    connect, connect_ex = noted(socket.socket.connect), noted(socket.socket.connect_ex)
socket.socket = Watched
"""
LOAD = """
import lrcore
from lrcore.data import load_texts
said = []
for name in json.loads(sys.argv[1]):
    for read in (lrcore.load, load_texts)[: 1 if "#" in name else 2]:  # a # names a field of texts
        try:
            read(name)
            said.append(f"{name} was read")
        except InputError as error:
            said.append(str(error))
print(json.dumps([asked, said]))
"""
COMMANDS = """
from lrcore.cli import main
codes = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        codes.append(main(words))
print(json.dumps([asked, codes]))
"""
STRANGE = (
    "http://169.254.169.254/",
    "http://169.254.169.254/latest/meta-data",
    "https://evil.example/x",
    "//evil.example/x",
    "\\\\evil.example\\x",
    "..%2fx",
    "owner/..%2f..%2fx",
    "owner/../x",
    "user@evil.example",
    "user:password@evil.example/x",
    "evil.example:80/x",
    "file:///etc/passwd",
    "ftp://evil.example/x",
    "hf://owner/name",
    "owner/name?x=1",
    "owner/name#x",
    "owner/name\nHost: evil.example",
    "owner/name\r\nX: y",
    "owner/name\x00",
    "owner/name\u2028",
    "owner\u202e/name",
    "owner/name/resolve/main/x",
    "owner/name/..",
    "-owner/--name",
    "[::1]/x",
    "127.0.0.1:9/x",
    "owner//name",
    "owner/name/",
    " owner/name",
    "owner/na me",
    "owner/n\u00e4me",
    "ow\u200bner/name",
)
SMALL = ["--data", "stories", "--samples", "2", "--seq-len", "16"]
HERE = (
    ["methods"],
    ["methods", "--json"],
    ["runs"],
    ["cache"],
    ["allocate", "demo-llama", *SMALL, "--method", "care", "--ratio", "0.3"],
    ["cost", "demo-llama"],
    ["generate", "demo-llama", "--prompt", "Once", "--max-new-tokens", "2"],
    ["evaluate", "demo-llama", *SMALL],
)


@pytest.fixture
def hub(tiny_llama):
    with serve({"owner/tiny": tiny_llama}, writers={"secret": True}) as handler:
        yield handler


@pytest.fixture
def watched_script(tmp_path):
    """What a script prints that may ask a hub: where it connected to, and what else it says."""

    def run(hub, script, *arguments, **variables):
        environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "hf"),
            "LRCORE_RUNS": str(tmp_path / "runs"),
            "NO_PROXY": "*",
            **variables,
        }
        command = ["-c", WATCH + script, *map(json.dumps, arguments)]
        done = fresh.project().run(command, os.environ | environment, tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_what_is_no_name_of_a_hub_is_refused_before_anything_is_asked(watched_script, hub):
    hosts, messages = watched_script(hub, LOAD, STRANGE)
    assert len(messages) == sum(1 if "#" in name else 2 for name in STRANGE)
    assert not [sentence for sentence in messages if "was read" in sentence]
    assert hub.requests == []
    assert hosts == []
    assert not [sentence for sentence in messages if len(sentence.splitlines()) > 1]


def test_a_name_of_a_hub_is_asked_for_there_and_nowhere_else(watched_script, hub):
    hosts, messages = watched_script(hub, LOAD, ["owner/tiny", "owner/nothing"])
    assert messages[0] == "owner/tiny was read"
    assert set(hosts) == {"127.0.0.1"}
    assert hub.requests
    assert all("owner/" in path for path in hub.requests)


def test_commands_on_what_is_here_ask_for_nothing(watched_script, hub):
    hosts, codes = watched_script(hub, COMMANDS, HERE)
    assert codes == [0] * len(HERE)
    assert hosts == []
    assert hub.requests == []


class Elsewhere(BaseHTTPRequestHandler):
    """Another host, to which a hub leads; `got` are the headers of what asked it."""

    content = b""
    got: list = []  # noqa: RUF012 (set per server)

    def do_GET(self):
        self.got.append(dict(self.headers))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_):
        pass


def test_a_hub_that_leads_to_another_host_is_followed_without_the_token(
    watched_script, hub, tiny_llama
):
    """As the hub does itself, whose large files lie elsewhere."""
    weights = (tiny_llama / "model.safetensors").read_bytes()
    handler = type("Here", (Elsewhere,), {"content": weights, "got": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.elsewhere = {"model.safetensors": f"http://127.0.0.1:{server.server_port}/x"}
    try:
        _, messages = watched_script(hub, LOAD, ["owner/tiny"], HF_TOKEN="hf_secret")
    finally:
        server.shutdown()
        server.server_close()
    assert messages[0] == "owner/tiny was read"
    assert handler.got
    assert "hf_secret" not in str(handler.got)
    assert "hf_secret" in str(hub.tokens)
