"""Requests to a hub, which need a valid repository name."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fresh
import pytest
from loopback_hub import serve

# Records the hosts of name lookups and connections.
WATCH = """
import contextlib, io, json, socket, sys
from lrcore import InputError
hosts = []

def recorded(function):
    def call(*arguments, **options):
        address = next((value for value in arguments if isinstance(value, (tuple, str))), "")
        hosts.append(str(address[0] if isinstance(address, tuple) else address))
        return function(*arguments, **options)
    return call

socket.getaddrinfo = recorded(socket.getaddrinfo)
class Watched(socket.socket):
    connect, connect_ex = recorded(socket.socket.connect), recorded(socket.socket.connect_ex)
socket.socket = Watched
"""
LOAD = """
import lrcore
from lrcore.data import load_texts
messages = []
for name in json.loads(sys.argv[1]):
    for read in (lrcore.load, load_texts)[: 1 if "#" in name else 2]:  # "#" names a field of texts
        try:
            read(name)
            messages.append(f"{name} was read")
        except InputError as error:
            messages.append(str(error))
print(json.dumps([hosts, messages]))
"""
COMMANDS = """
from lrcore.cli import main
codes = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        codes.append(main(words))
print(json.dumps([hosts, codes]))
"""
INVALID_NAMES = (
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
LOCAL_COMMANDS = (
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
    """Return a function that runs a script and returns its hosts and messages."""

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


def test_an_invalid_repository_name_is_refused_without_a_request(watched_script, hub):
    hosts, messages = watched_script(hub, LOAD, INVALID_NAMES)
    assert len(messages) == sum(1 if "#" in name else 2 for name in INVALID_NAMES)
    assert not [sentence for sentence in messages if "was read" in sentence]
    assert hub.requests == []
    assert hosts == []
    assert not [sentence for sentence in messages if len(sentence.splitlines()) > 1]


def test_a_valid_repository_name_is_requested_only_from_the_hub(watched_script, hub):
    hosts, messages = watched_script(hub, LOAD, ["owner/tiny", "owner/nothing"])
    assert messages[0] == "owner/tiny was read"
    assert set(hosts) == {"127.0.0.1"}
    assert hub.requests
    assert all("owner/" in path for path in hub.requests)


def test_commands_on_local_models_send_no_requests(watched_script, hub):
    hosts, codes = watched_script(hub, COMMANDS, LOCAL_COMMANDS)
    assert codes == [0] * len(LOCAL_COMMANDS)
    assert hosts == []
    assert hub.requests == []


class SecondHost(BaseHTTPRequestHandler):
    """A second host, to which the hub redirects; `got` are the headers of its requests."""

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


def test_a_redirect_to_a_second_host_is_followed_without_the_token(watched_script, hub, tiny_llama):
    """As on the hub, which stores large files on separate hosts."""
    weights = (tiny_llama / "model.safetensors").read_bytes()
    handler = type("Host", (SecondHost,), {"content": weights, "got": []})
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
