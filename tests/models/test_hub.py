"""Models from a local hub: downloads, and error messages.

The client reads HF_ENDPOINT once per process, so each case runs in a new process.
"""

import json
import os

import fresh
import pytest
from gguf_files import write_gguf
from loopback_hub import COMMIT, serve

import lrcore


@pytest.fixture
def hub(tiny_llama, tmp_path):
    """Run a hub with the attributes `repositories` and `cut`."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_llama.iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).write_bytes(file.read_bytes())
    (bare / "pytorch_model.bin").write_bytes(b"pickle")
    incomplete = (
        tmp_path / "holed"
    )  # the index lists two shards, but the repository has only the first
    incomplete.mkdir()
    for file in bare.glob("*.json"):
        (incomplete / file.name).write_bytes(file.read_bytes())
    (incomplete / "model-00001-of-00002.safetensors").write_bytes(
        (tiny_llama / "model.safetensors").read_bytes()
    )
    shards = {f"tensor{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (incomplete / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": shards})
    )
    repositories = {"owner/tiny": tiny_llama, "owner/bare": bare, "owner/holed": incomplete}
    with serve(repositories) as handler:
        yield handler


MANY = """
import contextlib, io, json, sys
from lrcore.cli import main
outcomes = []
for flags in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["generate", *flags, "--prompt", "Once", "--max-new-tokens", "4"])
    outcomes.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(outcomes))
"""


@pytest.fixture
def run(hub, tmp_path):
    """Return a function that generates with several model names (and flags) from the hub.

    It returns (exit code, stdout, stderr) for each.
    """

    def generate(*cases, **environment):
        variables = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "hf"),
            "NO_PROXY": "*",
        }
        command = ["-c", MANY, json.dumps([case.split() for case in cases])]
        done = fresh.project().run(command, os.environ | variables | environment, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return generate


def assert_refused(outcome, *words):
    code, out, err = outcome
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err


def test_model_is_downloaded_once_and_then_loaded_offline(run, hub):
    code, out, err = run("owner/tiny")[0]
    assert (code, err) == (0, "")
    assert out.startswith("Once")
    assert not any(path.endswith(".bin") for path in hub.requests)
    cached, elsewhere = run("owner/tiny", "owner/other", HF_HUB_OFFLINE="1")
    assert cached == [0, out, ""]
    assert_refused(elsewhere, "'owner/other'", "HF_HUB_OFFLINE", "folder")
    cached, elsewhere = run("owner/tiny", "owner/other", HF_ENDPOINT="http://127.0.0.1:9")
    assert cached == [0, out, ""]
    assert_refused(elsewhere, "'owner/other'", "http://127.0.0.1:9", "HF_ENDPOINT", "folder")


def test_adapter_is_merged_into_its_base(run, hub, tiny_llama, tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    network = lrcore.load(str(tiny_llama)).network
    network.name_or_path = "owner/tiny"
    config = peft.LoraConfig(r=4, init_lora_weights=False)
    peft.get_peft_model(network, config).save_pretrained(tmp_path / "adapter")
    hub.repositories["owner/adapter"] = tmp_path / "adapter"
    code, out, err = run("owner/adapter")[0]
    assert (code, err) == (0, "note: owner/adapter: LoRA adapter merged into tiny\n")
    assert out.startswith("Once")


def test_revisions_are_loaded_and_errors_of_the_hub_are_reported(run, hub):
    older, newest, gated, nothing, bare, incomplete, forbidden, down = run(
        "owner/tiny --revision older",
        "owner/tiny --revision newest",
        "owner/gated",
        "owner/nothing",
        "owner/bare",
        "owner/holed",
        "owner/forbidden",
        "owner/down",
    )
    assert older[0] == 0
    assert any(COMMIT["older"] in path for path in hub.requests)
    assert_refused(newest, "'owner/tiny'", "no revision 'newest'")
    assert_refused(gated, "'owner/gated' is gated", "HF_TOKEN")
    assert_refused(nothing, "'owner/nothing'", "demo-llama")
    assert_refused(bare, "no weights", "safetensors")
    assert_refused(incomplete, "1 of the 2 weight files", "model-00002-of-00002.safetensors")
    assert_refused(forbidden, "'owner/forbidden'", "403", "HF_TOKEN")
    assert_refused(down, "'owner/down'", "500", hub.endpoint)


def test_gguf_file_of_a_repository_is_downloaded_without_other_files(
    run, hub, tiny_llama, tmp_path
):
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    folder = tmp_path / "quantised"
    folder.mkdir()
    (folder / "large.bin").write_bytes(b"pickle")
    write_gguf(tiny_llama, folder / "tiny.Q8_0.gguf", "Q8_0")
    hub.repositories["owner/quantised"] = folder
    present, none, elsewhere = run(
        "owner/quantised/tiny.Q8_0.gguf",
        "owner/quantised/none.gguf",
        "owner/nothing/tiny.gguf",
    )
    assert present[0] == 0
    assert present[1].startswith("Once")
    assert "Dequantized from 8 bits" in present[2]
    assert not any(path.endswith(".bin") for path in hub.requests)
    assert_refused(none, "'owner/quantised' on the hub", "no file 'none.gguf'")
    assert_refused(elsewhere, "'owner/nothing'", "smollm2-135m")


def test_interrupted_download_raises_and_can_be_repeated(run, hub):
    hub.cut = "model.safetensors"
    assert_refused(run("owner/tiny")[0], "'owner/tiny'", "failed", "Try again")
    hub.cut = None
    assert run("owner/tiny")[0][0] == 0
