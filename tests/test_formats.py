"""Format numbers in the source: each has a test, and files of a different format are not read."""

import importlib
import re
from pathlib import Path

import lrcore

ROOT = Path(__file__).parent.parent / "lrcore"
CACHED = (  # modules with cached files, named by a key that includes the format
    "compression.analyze",
    "compression.calibration.calibrate",
    "compression.calibration.gradients",
    "compression.evidence.error_model",
    "compression.evidence.joint_probes",
    "compression.evidence.latency",
    "compression.evidence.layer_probes",
    "compression.evidence.quantization",
    "compression.pipeline.choose_plan",
    "data.tokens",
    "models.gguf_import",
    "models.lora_import",
)
# files that contain their format; tests/test_upgrades.py covers the last two,
# tests/compression/pipeline/test_nest.py the second
KEPT = (
    "checkpoints.checkpoint",
    "checkpoints.nested",
    "runs.sweep_store",
    "compression.steps.healing.distillation",
)


def test_each_format_in_the_source_has_a_test():
    named = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.rglob("*.py")
        if re.search(r"^FORMAT = ", path.read_text(encoding="utf-8"), re.M)
    }
    assert named == {*CACHED, *KEPT}


def test_cached_files_of_a_different_format_are_not_read(
    tiny_llama, story_file, tmp_path, monkeypatch
):
    def compute() -> list:
        recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
        dense, ranks = lrcore.load(str(tiny_llama)), []
        for policy, budget in (
            ("probed", "params"),
            ("fisher", "params"),
            ("lems", "params"),
            ("probed", "bytes"),
        ):
            variant = recipe.with_(policy=policy, budget=budget, method="svd_llm", ratio=0.3)
            factors = lrcore.prepare(dense, variant)
            ranks.append(lrcore.choose_plan(dense, factors, variant).ranks)
        table = lrcore.analyze(dense, lrcore.calibrate(dense, recipe)).table(0.9)
        return [*ranks, table.round(6).to_dict()]

    cache = tmp_path / "cache"
    monkeypatch.setenv("LRCORE_CACHE", str(cache))
    with monkeypatch.context() as before:
        for name in CACHED:
            module = importlib.import_module(f"lrcore.{name}")
            before.setattr(module, "FORMAT", module.FORMAT - 1)
        expected = compute()
    old = [path for path in cache.rglob("*") if path.is_file()]
    for path in old:
        path.write_bytes(b"of another format")
    assert compute() == expected
    assert {path.read_bytes() for path in old} == {b"of another format"}
    assert {path.relative_to(cache).parts[0] for path in old} >= {
        "moments",
        "gradients",
        "spectra",
        "probes",
    }
