"""A local hub that serves folders; clients find it by HF_ENDPOINT."""

import hashlib
import json
import threading
from base64 import b64decode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = {"main": "a" * 40, "older": "b" * 40}


class Hub(BaseHTTPRequestHandler):
    """Hub with the addresses that are needed to download a repository and upload a folder.

    Repositories are folders: {"owner/name": folder}.

    Weights are uploaded as large files (a batch request, then an upload each) and other files
    within the commit, as on the public hub without Xet.
    """

    repositories: dict = {}  # noqa: RUF012 (set per server)
    writers: dict = {}  # noqa: RUF012 (token: whether it may write)
    store = None  # folder for created repositories
    created: dict = {}  # noqa: RUF012 (repository: "private" or "public")
    cut = None  # name of a file with a download that breaks off
    elsewhere: dict = {}  # noqa: RUF012 (file name: address of a redirect)
    safetensors = None  # {"parameters": {dtype: count}, "total": count} of all repositories
    requests: list = []  # noqa: RUF012
    tokens: set = set()  # noqa: RUF012 (received tokens)

    def do_GET(self):
        self.respond(body=True)

    def do_HEAD(self):
        self.respond(body=False)

    def log_message(self, *_):
        pass

    def do_POST(self):
        path, body = unquote(self.path.split("?")[0]).strip("/"), self.body()
        self.requests.append(f"POST {path}")
        if not self.writers.get((self.headers.get("Authorization") or "").removeprefix("Bearer ")):
            return self.refuse(403 if self.headers.get("Authorization") else 401, "")
        if path == "api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        requested = [json.loads(line) for line in body.splitlines()]
        if path == "api/repos/create":
            repository = f"{requested[0]['organization']}/{requested[0]['name']}"
            private = requested[0].get(
                "private", requested[0].get("visibility") == "private"
            )  # older and newer clients use different fields
            self.created[repository] = "private" if private else "public"
            self.repositories.setdefault(repository, self.store / repository).mkdir(
                parents=True, exist_ok=True
            )
            return self.json(
                {"url": f"{self.endpoint}/{repository}", "name": repository, "id": repository}
            )
        if path.endswith("/preupload/main"):
            modes = [
                (file["path"], "lfs" if file["path"].endswith(".safetensors") else "regular")
                for file in requested[0]["files"]
            ]
            return self.json(
                {
                    "files": [
                        {"path": file, "uploadMode": mode, "shouldIgnore": False}
                        for file, mode in modes
                    ]
                }
            )
        if path.endswith("/info/lfs/objects/batch"):
            uploads = [
                lfs_object
                | {"actions": {"upload": {"href": f"{self.endpoint}/lfs/{lfs_object['oid']}"}}}
                for lfs_object in requested[0]["objects"]
            ]
            return self.json({"transfer": "basic", "objects": uploads})
        repository = path.removeprefix("api/models/").removesuffix("/commit/main")
        for entry in requested[1:]:
            value = entry["value"]
            content = (
                b64decode(value["content"])
                if entry["key"] == "file"
                else (self.store / value["oid"]).read_bytes()
            )
            (self.repositories[repository] / value["path"]).write_bytes(content)
        self.json(
            {
                "commitUrl": f"{self.endpoint}/{repository}/commit/{COMMIT['main']}",
                "commitOid": COMMIT["main"],
                "success": True,
            }
        )

    def do_PUT(self):
        content = self.body()
        name = self.path.split("/")[-1]
        assert hashlib.sha256(content).hexdigest() == name
        (self.store / name).write_bytes(content)
        self.refuse(200, "")

    def body(self):
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def respond(self, body):
        path = unquote(self.path.split("?")[0]).strip("/")
        self.requests.append(path)
        self.tokens.add(self.headers.get("Authorization", ""))
        if path.startswith("api/models/"):
            return self.api(path.removeprefix("api/models/").split("/"))
        owner, name, *where = path.split("/")
        if where[:1] != ["resolve"] or len(where) < 3:
            return self.refuse(404, "EntryNotFound")
        self.file(f"{owner}/{name}", where[1], "/".join(where[2:]), body)

    def api(self, parts):
        repository, remainder = "/".join(parts[:2]), parts[2:]
        if repository == "owner/gated":
            return self.refuse(401, "GatedRepo")
        if repository in ("owner/forbidden", "owner/down"):
            return self.refuse(403 if repository == "owner/forbidden" else 500, "")
        if repository not in self.repositories:
            return self.refuse(401, "RepoNotFound")
        revision = remainder[1] if len(remainder) > 1 else "main"
        commit = COMMIT.get(revision, revision)
        if commit not in COMMIT.values():
            return self.refuse(404, "RevisionNotFound")
        files = [path for path in sorted(self.repositories[repository].iterdir()) if path.is_file()]
        if remainder[:1] == ["tree"]:
            return self.json(
                [
                    {
                        "type": "file",
                        "path": file.name,
                        "size": file.stat().st_size,
                        "oid": _hash(file),
                    }
                    for file in files
                ]
            )
        return self.json(
            {
                "id": repository,
                "sha": commit,
                "siblings": [
                    {"rfilename": file.name, "size": file.stat().st_size} for file in files
                ],
            }
            | ({"safetensors": self.safetensors} if self.safetensors else {})
        )

    def file(self, repository, commit, name, body):
        if repository not in self.repositories:
            return self.refuse(401, "RepoNotFound")
        file = self.repositories[repository] / name
        if not file.is_file():
            return self.refuse(404, "EntryNotFound")
        content = file.read_bytes()
        self.send_response(302 if name in self.elsewhere else 200)
        if name in self.elsewhere:
            self.send_header("Location", self.elsewhere[name])
            self.send_header("X-Linked-Size", str(len(content)))
            content, body = b"", False
        for key, value in {
            "ETag": f'"{_hash(file)}"',
            "X-Repo-Commit": commit,
            "Content-Length": len(content),
        }.items():
            self.send_header(key, str(value))
        self.end_headers()
        if body:
            self.wfile.write(content[: len(content) // 2] if name == self.cut else content)
            self.close_connection = True

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def json(self, values):
        content = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _hash(file):
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def serve(repositories, store=None, writers=()):
    """Run a hub and yield its handler class, with `endpoint`; changed attributes of the class take
    effect immediately.
    """
    attributes = {
        "repositories": repositories,
        "store": store,
        "writers": dict(writers),
        "requests": [],
        "tokens": set(),
        "created": {},
    }
    handler = type("Here", (Hub,), attributes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield handler
    finally:
        server.shutdown()
        server.server_close()
