"""The size of a model on the hub, before its download.

The client reads HF_ENDPOINT once per process, so the requests run in a new process.
"""

import json
import os

import fresh
from loopback_hub import serve

from lrcore.models.hub_size import HubSize

SIZES = """
import json, lrcore
from lrcore.models.hub_size import hub_size
def size(name):
    found = hub_size(name)
    return found and [found.download, found.parameters]
before = [size(name) for name in ("owner/tiny", "owner/nothing", "demo-llama")]
lrcore.load("owner/tiny")
print(json.dumps([*before, size("owner/tiny")]))
"""
JOB = """
import lrcore
from types import SimpleNamespace
from workbench.jobs import measuring
measuring.hardware = lambda name: SimpleNamespace(free=10**6)
lines = []
reporter = SimpleNamespace(add_log=lines.append, progress=lambda *_: None, part="")
recipe = lrcore.Recipe("owner/tiny")
try:
    measuring.announce_download(recipe, reporter)
except lrcore.InputError as error:
    lines.append(str(error))
measuring.announce_download(recipe.with_(offload=True), reporter)
print("\\n".join([*lines, reporter.part]))
"""


def answers(hub, script, folder) -> str:
    """Run a script whose hub is `hub`."""
    variables = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(folder / "hf"),
        "NO_PROXY": "*",
    }
    done = fresh.project().run(["-c", script], os.environ | variables, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_size_is_read_without_a_download(tiny_llama, tmp_path):
    with serve({"owner/tiny": tiny_llama}) as hub:
        hub.safetensors = {"parameters": {"F32": 1000, "BF16": 24}, "total": 1024}
        tiny, nothing, built_in, cached = json.loads(answers(hub, SIZES, tmp_path))
    kept = (*tiny_llama.glob("*.json"), *tiny_llama.glob("*.safetensors"))
    assert tiny == [sum(file.stat().st_size for file in kept), 1024]
    assert nothing is built_in is cached is None


def test_the_memory_follows_the_data_type():
    size = HubSize(100, 30)
    assert (size.memory("float32"), size.memory("bfloat16"), size.memory("auto")) == (120, 60, 100)
    assert HubSize(100, None).memory("float32") == 100


def test_a_model_that_does_not_fit_is_not_downloaded(tiny_llama, tmp_path):
    with serve({"owner/tiny": tiny_llama}) as hub:
        hub.safetensors = {"parameters": {"F32": 10**6}, "total": 10**6}
        printed = answers(hub, JOB, tmp_path)
        assert not any("resolve" in path for path in hub.requests)
    first, refusal, second, part = printed.splitlines()
    assert first == second
    assert first.startswith("owner/tiny: ")
    assert "4 MB in memory as float32; 1 MB are free." in first
    assert "take 4.0 MB of memory; 1.0 MB are free. Choose" in refusal
    assert part.startswith("downloading ")
