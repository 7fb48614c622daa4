"""Hub data sets from a local hub: reading and error messages. The client reads HF_ENDPOINT once per
process, so all cases run in a subprocess.
"""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import fresh
import pytest
from packed_files import a_zip

COMMIT = "c" * 40
CARD = b"""---
configs:
- config_name: plain
  data_files:
  - {split: train, path: train.jsonl}
  - {split: test, path: test.jsonl}
- config_name: odd
  data_files:
  - {split: train, path: odd.jsonl}
- config_name: archive
  data_files:
  - {split: train, path: train.zip}
- config_name: disguised
  data_files:
  - {split: train, path: train.txt}
---
"""
FILES = {
    "README.md": CARD,
    "train.jsonl": b'{"text": "One"}\n{"text": ""}\n{"text": "Two"}\n',
    "test.jsonl": b'{"text": "Three"}\n',
    "odd.jsonl": b'{"a": "x", "b": "y"}\n',
    "train.zip": a_zip(),
    "train.txt": a_zip(),
}

MANY = """
import json, sys
from lrcore.data import hub
hub.CHARACTERS = int(sys.argv[2])
from lrcore.data import load_texts
from lrcore.system.errors import InputError
outcomes = []
for data, options in json.loads(sys.argv[1]):
    try:
        texts = load_texts(data, **options)
        outcomes.append([list(texts.documents), texts.source])
    except InputError as error:
        outcomes.append(str(error))
print(json.dumps(outcomes))
"""


class Hub(BaseHTTPRequestHandler):
    """Hub with the addresses that are requested for the data set owner/tiny."""

    protocol_version = "HTTP/1.1"
    stored = 1000

    def do_GET(self):
        self.respond(body=True)

    def do_HEAD(self):
        self.respond(body=False)

    def do_POST(self):
        requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
        self.send([entry(name) for name in FILES if name in requested])

    def log_message(self, *_):
        pass

    def respond(self, body):
        path = unquote(self.path.split("?")[0]).strip("/")
        repository, _, remainder = (
            path.removeprefix("api/").removeprefix("datasets/").partition("owner/tiny")
        )
        if repository or (path.startswith("api/") and not path.startswith("api/datasets/")):
            return self.send(
                {},
                404 if "owner/gated" not in path else 403,
                "GatedRepo" if "owner/gated" in path else "RepoNotFound",
            )
        kind, _, remainder = remainder.strip("/").partition("/")
        if kind in ("resolve", "revision", "tree") and remainder.split("/")[0] not in (
            "main",
            COMMIT,
        ):
            return self.send({}, 404, "RevisionNotFound")
        if kind == "resolve":
            return self.file(remainder.split("/", 1)[1], body)
        if kind == "tree":
            return self.send([entry(name) for name in FILES])
        self.send(
            {
                "id": "owner/tiny",
                "sha": COMMIT,
                "usedStorage": self.stored,
                "siblings": [{"rfilename": name} for name in FILES],
            }
        )

    def file(self, name, body):
        if name not in FILES:
            return self.send({}, 404, "EntryNotFound")
        start, status, content = 0, 200, FILES[name]
        if ranged := self.headers.get("Range"):
            first, last = ranged.removeprefix("bytes=").split("-")
            start, status = int(first), 206
            content = content[start : int(last) + 1 if last else None]
        self.send_response(status)
        headers = {
            "ETag": f'"{oid(name)}"',
            "X-Repo-Commit": COMMIT,
            "Content-Length": len(content),
            "Accept-Ranges": "bytes",
        }
        if status == 206:
            headers["Content-Range"] = (
                f"bytes {start}-{start + len(content) - 1}/{len(FILES[name])}"
            )
        for key, value in headers.items():
            self.send_header(key, str(value))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def send(self, values, status=200, code=""):
        content = json.dumps(values).encode()
        self.send_response(status)
        for key, value in {
            "X-Error-Code": code,
            "Content-Type": "application/json",
            "Content-Length": len(content),
        }.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def oid(name):
    return hashlib.sha1(FILES[name]).hexdigest()


def entry(name):
    return {"type": "file", "path": name, "size": len(FILES[name]), "oid": oid(name)}


@pytest.fixture
def read(tmp_path):
    """Return a function that loads each (data, options) in a subprocess and gives [documents,
    source] or the error text.
    """
    handler = type("Here", (Hub,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def run(*cases, stored=1000, characters=10**6, endpoint=None, offline="0"):
        handler.stored = stored
        environment = {
            "HF_ENDPOINT": endpoint or f"http://127.0.0.1:{server.server_port}",
            "HF_HUB_OFFLINE": offline,
            "HF_HOME": str(tmp_path / "hf"),
            "NO_PROXY": "*",
            "OMP_NUM_THREADS": "1",
        }
        command = ["-c", MANY, json.dumps(cases), str(characters)]
        done = fresh.project().run(command, os.environ | environment, tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    yield run
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_splits_and_configs_are_read_and_errors_of_the_hub_are_reported(read):
    first, test, named, pinned, split, config, revision, unknown, gated, odd, form, *packed = read(
        ("owner/tiny:plain", {}),
        ("owner/tiny:plain", {"role": "test"}),
        ("owner/tiny:plain:test", {}),
        ("owner/tiny:plain:train", {"revision": COMMIT}),
        ("owner/tiny:plain:valid", {}),
        ("owner/tiny:fancy", {}),
        ("owner/tiny:plain", {"revision": "nowhere"}),
        ("owner/nothing", {}),
        ("owner/gated:plain", {}),
        ("owner/tiny:odd", {}),
        ("a:b:c:d", {}),
        ("owner/tiny:archive", {}),
        ("owner/tiny:disguised", {}),
    )
    assert first == [["One", "", "Two"], f"owner/tiny:plain:train@{COMMIT}"]
    assert test == named == [["Three"], f"owner/tiny:plain:test@{COMMIT}"]
    assert pinned == first
    assert "Cannot load the hub data set 'owner/tiny' (config plain, split valid)" in split
    assert "train" in split
    assert "fancy" in config
    assert "plain" in config
    assert "has no revision 'nowhere'" in revision
    assert "Unknown data set 'owner/nothing'" in unknown
    assert "is gated" in gated
    assert "Fields: a (str), b (str)" in odd
    assert "Cannot read the data set name 'a:b:c:d'" in form
    assert "has the archive 'train.zip', which is not unpacked" in packed[0]
    assert "Cannot load the hub data set" in packed[1]


@pytest.mark.slow
def test_a_large_data_set_is_streamed_up_to_a_limit(read):
    assert read(("owner/tiny:plain", {}), stored=10**13, characters=2) == [
        [["One"], f"owner/tiny:plain:train@{COMMIT}"]
    ]


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_reported(read):
    (message,) = read(("owner/tiny:plain", {}), endpoint="http://127.0.0.1:9")
    assert "is neither a built-in name nor a local file, and the hub cannot be reached" in message
    assert "HF_ENDPOINT" in message
    assert "Built-in data (stories, python-docs) and local files need no network" in message


@pytest.mark.slow
def test_the_cached_copy_is_used_without_a_network(read):
    online = read(("owner/tiny:plain", {"revision": COMMIT}))
    assert read(("owner/tiny:plain", {"revision": COMMIT}), offline="1") == online
    (message,) = read(("owner/other", {}), offline="1")
    assert "Cannot load the hub data set 'owner/other'" in message
