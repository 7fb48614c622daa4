"""Downloads of exports as zip archives."""

import io
import json
import tracemalloc
import zipfile
from urllib.parse import urljoin

import httpx
import pytest
from elsewhere import elsewhere
from page_server import PATIENCE, served

import lrcore
from workbench.app.app import build_app
from workbench.jobs import ExportJob
from workbench.server.zip_download import CHUNK, zip_stream
from workbench.state import downloads
from workbench.state.job_record import JobRecord
from workbench.state.store import Store
from workbench.tabs.runs import details, exports

NAME = '../a/b "<c>"\r\nx: y'
LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert torch.isfinite(model(torch.arange(3, 23)[None]).logits).all()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("downloads") / "runs")


@pytest.fixture(scope="module")
def run(store, tiny_llama, story_file):
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=2, seq_len=32, ratio=0.2, method="a3"
    )
    return store.runs.write(NAME, recipe, lrcore.compress(lrcore.load(recipe.model), recipe))


@pytest.fixture(scope="module")
def exported(store, run):
    job = ExportJob(run.id, "transformers")
    job.run(store, JobRecord(job))
    return run.folder / "export"


@pytest.fixture(scope="module")
def page(store):
    with served(build_app(store)) as url:
        yield url


def fetch(url, **headers):
    """Return the response to a request, with a long timeout for busy machines."""
    return httpx.get(url, headers=headers, timeout=PATIENCE)


def address(store, run, target="transformers"):
    return json.loads(exports.download(store, run.id, target))["address"]


def test_transformers_loads_the_unpacked_archive(store, run, exported, page, tmp_path):
    url = urljoin(f"{page}/?tab=x", address(store, run))
    answer = fetch(url, **{"accept-encoding": "gzip"})
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="a-b-c-x-y.zip"'
    assert "content-encoding" not in answer.headers  # weights do not compress well
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        archive.extractall(tmp_path)
    assert fetch(url).status_code == 404  # a ticket is valid for one download
    (folder,) = tmp_path.iterdir()
    names = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
    assert names == {file.relative_to(exported) for file in exported.rglob("*") if file.is_file()}
    elsewhere(LOAD, str(folder), cwd=tmp_path)


def test_a_single_file_is_also_an_archive(tmp_path):
    (tmp_path / "export.gguf").write_bytes(b"GGUF")
    download = downloads.download_of(tmp_path / "export.gguf", "small")
    assert list(download.files) == ["small/export.gguf"]
    with zipfile.ZipFile(io.BytesIO(b"".join(zip_stream(download.files)))) as archive:
        assert archive.read("small/export.gguf") == b"GGUF"


@pytest.mark.parametrize("target", ["transformers-stock", "..", "../../etc", "/etc/passwd", ""])
def test_downloads_need_an_existing_export(store, run, target):
    with pytest.raises(lrcore.InputError, match="Press Export first"):
        exports.download(store, run.id, target)


@pytest.mark.parametrize("run_id", ["", "..", "/etc", "gone"])
def test_downloads_need_an_existing_run(store, run_id):
    with pytest.raises(lrcore.InputError, match="No run has the id"):
        exports.download(store, run_id, "transformers")


def test_a_link_to_a_path_outside_is_refused(store, run, exported, tmp_path):
    (tmp_path / "secret").write_text("secret")
    link = exported / "link"
    link.symlink_to(tmp_path / "secret")
    try:
        with pytest.raises(lrcore.InputError, match="link to a path outside"):
            exports.download(store, run.id, "transformers")
    finally:
        link.unlink()
    stock = run.folder / "export-stock"
    stock.symlink_to(tmp_path)
    try:
        with pytest.raises(lrcore.InputError, match="link to a path outside"):
            exports.download(store, run.id, "transformers-stock")
    finally:
        stock.unlink()


def test_an_address_without_a_valid_ticket_is_not_found(store, run, exported, page, monkeypatch):
    for path in ("x", "..%2f..%2fetc%2fpasswd", f"{run.id}", str(exported), ""):
        assert fetch(f"{page}/downloads/{path}").status_code == 404, path
    url = urljoin(page, address(store, run))
    monkeypatch.setattr(downloads, "LIFETIME", -1.0)
    late = urljoin(page, address(store, run))
    assert fetch(late).status_code == 404
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        assert fetch(url, **headers).status_code == 403
    assert fetch(url).status_code == 200  # a refused request leaves the ticket valid


def test_a_large_file_is_never_completely_in_memory(tmp_path):
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(64 * CHUNK)
    tracemalloc.start()
    length = sum(map(len, zip_stream({"weights": tmp_path / "weights"})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert length > 64 * CHUNK
    assert peak < 8 * CHUNK


def test_the_download_button_is_visible_if_an_export_exists(store, run, exported, tiny_llama):
    *_, buttons, folders, _ = details.show(store, run.id, "")
    assert folders["value"] == str(exported)
    assert folders["visible"]
    assert "export-download" in buttons
    another = store.runs.write("new", run.recipe, lrcore.load(str(run.checkpoint)))
    for run_id in (another.id, "gone"):
        *_, buttons, folders, _ = details.show(store, run_id, "")
        assert not folders["visible"]
        assert "export-download" not in buttons
