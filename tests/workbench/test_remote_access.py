"""A page on the network, accessed without a password and with hostile paths."""

import json
import os
import re

import httpx
import pytest
from page_server import served

import lrcore
from lrcore.system.path_access import restrict_paths, strip_paths
from workbench.app.app import build_app
from workbench.jobs import KINDS
from workbench.server.host_names import HostNames
from workbench.state.store import Store
from workbench.widgets.events import BROWSER_COOKIE

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("others") / "runs", KINDS)


@pytest.fixture(scope="module")
def app(store):
    return build_app(store)


@pytest.fixture(scope="module")
def page(app):
    """Serve the page with a password, and return its address."""
    with served(app, HostNames("127.0.0.1", ("bench.example",)), PASSWORD) as url:
        yield url


@pytest.fixture(scope="module")
def stranger(page):
    with httpx.Client(base_url=page, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def guest(page):
    """Return a client that is logged in."""
    with httpx.Client(base_url=page, timeout=60) as client:
        answer = client.post("/login", data={"username": "me", "password": PASSWORD})
        assert answer.status_code == 200
        yield client


@pytest.fixture
def confined(tmp_path):
    """Restrict readable files to a folder, and return it."""
    root = tmp_path / "allowed"
    root.mkdir()
    restrict_paths([root])
    yield root
    restrict_paths([])


def test_all_routes_require_the_password(stranger):
    assert "auth_required" in stranger.get("/").text
    assert stranger.post("/login", data={"username": "me", "password": "x"}).status_code == 400
    for path in (
        "/config",
        "/gradio_api/info",
        "/gradio_api/queue/status",
        "/gradio_api/queue/data?session_hash=a",
        "/gradio_api/file=/etc/hostname",
        "/gradio_api/mcp/",
        "/gradio_api/mcp/sse",
        "/gradio_api/mcp/schema",
        "/monitoring",
        "/downloads/x",
        "/gradio_api/deep_link",
        "/gradio_api/upload_progress?upload_id=a",
    ):
        with stranger.stream("GET", path) as answer:
            assert answer.status_code >= 400, path
    for path in ("queue/join", "run/models", "call/models", "upload", "mcp/", "reset", "cancel"):
        answer = stranger.post(f"/gradio_api/{path}", json={"data": [], "fn_index": 0})
        assert answer.status_code in (401, 404, 405, 422), path


def test_the_page_loads_with_the_password(guest):
    assert "components" in guest.get("/config").json()


def test_foreign_hosts_and_origins_are_refused_before_gradio(guest):
    assert guest.get("/", headers={"host": "evil.example"}).status_code == 403
    assert guest.get("/", headers={"host": "bench.example"}).status_code == 200
    refused = guest.post(
        "/gradio_api/queue/join", json={}, headers={"origin": "http://evil.example"}
    )
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    assert "content-security-policy" in refused.headers


def test_every_route_checks_host_and_origin(app, guest):
    """Includes uploads, streams and tools of agents, and routes of later versions of Gradio."""
    served_routes = sorted(routes(app.app))
    assert {"/gradio_api/upload", "/gradio_api/queue/data"} <= {path for path, _ in served_routes}
    for path, methods in served_routes:
        address = re.sub(r"\{[^}]*\}", "x", path)
        for method in sorted(methods):
            for header in (
                {"host": "evil.example"},
                {"origin": "http://evil.example"},
                {"origin": "null"},
                {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
            ):
                answer = guest.request(method, address, headers=header)
                assert answer.status_code == 403, (method, path, header)
                assert "access-control-allow-origin" not in answer.headers


def routes(app):
    """Yield the path and the methods of each route of a server."""
    for route in app.routes:
        inner = getattr(route, "original_router", route)
        if getattr(inner, "routes", None):
            yield from routes(inner)
        else:
            yield route.path, tuple(getattr(route, "methods", None) or ("GET", "POST"))


def test_pages_of_other_sites_cannot_frame_the_page(guest):
    assert "frame-ancestors 'self'" in guest.get("/").headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../../../../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "file:///etc/passwd",
        "README.md",
        "workbench/app/start.py",
        ".env",
        "runs/runs.sqlite",
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_files_of_the_server_are_not_served(guest, path):
    for address in (f"/gradio_api/file={path}", f"/file={path}", f"/static/{path}"):
        assert guest.get(address).status_code in (400, 403, 404, 405), address


def test_a_file_of_the_server_is_not_accepted_as_an_upload(guest):
    config = guest.get("/config").json()
    button = next(
        component["id"]
        for component in config["components"]
        if component["props"].get("elem_id") == "load-recipe"
    )
    number = next(
        dependency["id"]
        for dependency in config["dependencies"]
        if any(t[0] == button for t in dependency["targets"])
    )
    secret = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    request = {"data": [secret], "fn_index": number, "session_hash": "attack"}
    assert guest.post("/gradio_api/queue/join", json=request).status_code == 200
    stream_text = ""
    with guest.stream("GET", "/gradio_api/queue/data?session_hash=attack") as lines:
        for line in lines.iter_lines():
            stream_text += line
            if "process_completed" in line:
                break
    assert "root:" not in stream_text
    assert '"success":false' in stream_text.replace(" ", "")


def endpoint(guest, name, *data):
    """Return the response of an endpoint, or its error message."""
    begun = guest.post(f"/gradio_api/call/{name}", json={"data": list(data)})
    assert begun.status_code == 200, begun.text
    return guest.get(f"/gradio_api/call/{name}/{begun.json()['event_id']}").text


@pytest.mark.parametrize(
    "recipe",
    [
        {"model": "/etc"},
        {"model": "../../etc"},
        {"model": "out"},
        {"model": "~/secret"},
        {"model": "demo-llama", "data": "/etc/passwd"},
        {"model": "demo-llama", "data": "/etc/hosts.txt"},
        {"model": "demo-llama", "data": "/etc/hosts.txt:test"},
        {"model": "demo-llama", "data": "out.txt"},
        {"model": "demo-llama", "data": "text"},
        {"model": "demo-llama", "data": "http://169.254.169.254/latest"},
        {"model": "http://169.254.169.254/x"},
        {"model": "https://evil.example/model.gguf"},
        {"model": "owner/../../etc"},
    ],
)
def test_recipes_cannot_read_paths_or_addresses_outside_the_folder(guest, confined, recipe):
    (confined / "out").symlink_to("/etc")
    (confined / "out.txt").symlink_to("/etc/passwd")
    answer = endpoint(guest, "analyze", recipe, 0.9)
    assert "event: error" in answer
    for secret in ("root:", str(confined), os.getcwd(), str(confined.parent)):
        assert secret not in answer, answer
    assert "No such file" not in answer


def test_files_in_the_folder_can_be_read(guest, confined, tiny_llama, story_text):
    target = confined / "model"
    target.mkdir()
    for file in tiny_llama.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (confined / "story.txt").write_text(story_text)
    recipe = {"model": "model", "data": "story.txt", "samples": 2, "seq_len": 16}
    assert "event: complete" in endpoint(guest, "allocate", recipe)
    recipe["model"] = "model/../model"
    assert "event: complete" in endpoint(guest, "allocate", recipe)


def test_messages_contain_neither_folders_nor_values_of_the_environment(
    guest, confined, store, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.internal:8080")
    (confined / "broken").mkdir()
    (confined / "broken" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    answer = endpoint(guest, "analyze", {"model": "broken"}, 0.9)
    assert "broken" in answer
    assert str(confined) not in answer
    log = "".join("".join(record.log) + record.error + record.title for record in store.jobs.all())
    assert str(confined) not in log
    message = strip_paths(
        "Cannot read '/data/my models/x.txt' (hf_verysecret at http://mirror.internal:8080/a), "
        f"see {os.getcwd()}/runs, C:\\Users\\me\\x.txt and https://huggingface.co/docs/hub."
    )
    for secret in ("/data", "verysecret", "mirror.internal", os.getcwd(), "Users"):
        assert secret not in message, message
    assert "https://huggingface.co/docs/hub." in message


def test_size_and_type_of_uploads_are_limited(guest):
    large = {"files": ("recipe.json", b"x" * (9 * 2**20))}
    assert guest.post("/gradio_api/upload", files=large).status_code == 413
    page = {"files": ("page.html", b"<script>alert(1)</script>")}
    assert guest.post("/gradio_api/upload", files=page).status_code == 415
    recipe = {"files": ("recipe.json", lrcore.Recipe().to_json().encode())}
    assert guest.post("/gradio_api/upload", files=recipe).status_code == 200


def test_the_footer_links_the_list_of_endpoints(guest):
    assert "api" in guest.get("/config").json()["footer_links"]


def test_a_browser_keeps_its_cookie_after_a_reload(guest):
    cookie = guest.cookies.get(BROWSER_COOKIE)
    assert cookie or BROWSER_COOKIE in guest.get("/").headers["set-cookie"]
    assert BROWSER_COOKIE not in guest.get("/").headers.get("set-cookie", "")
    assert BROWSER_COOKIE not in guest.get("/config").headers.get("set-cookie", "")
