"""The recipes whose models decode slower than the dense model."""

import pytest
import torch

import lrcore
from lrcore.cli import main
from lrcore.compression.slower_decoding import slower_decoding
from lrcore.methods import METHODS


@pytest.mark.parametrize(
    ("fields", "work"),
    [
        ({"method": "care"}, "keys"),
        ({"method": "fused", "budget": "kv"}, "keys"),
        ({"method": "latentllm", "options": {"bits": 4}}, "dequantizes"),
        ({"method": "latentllm", "options": {"sparse": 0.1}, "dtype": "float16"}, "sparse"),
        ({"method": "fused", "budget": "bytes", "policy": "probed"}, "dequantizes"),
    ],
)
def test_latent_keys_and_stored_forms_make_decoding_slower(fields, work):
    assert work in slower_decoding(lrcore.Recipe(**fields))


def test_the_notice_of_sparse_matrices_depends_on_their_product(monkeypatch):
    recipe = lrcore.Recipe(method="compot", dtype="float32")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert "up to a quarter" in slower_decoding(recipe)
    assert "matrices dense" in slower_decoding(recipe.with_(dtype="bfloat16"))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert "matrices dense" in slower_decoding(recipe)


def test_other_methods_have_no_such_notice():
    slower = {name for name in METHODS if slower_decoding(lrcore.Recipe(method=name))}
    assert slower == {"care", "compot", "mha2mla", "transmla"}


def test_command_says_so_before_its_work(tiny_llama, story_file, tmp_path, capsys):
    windows = ["--data", str(story_file), "--samples", "4", "--seq-len", "32"]
    assert main(["allocate", str(tiny_llama), "--method", "care", *windows]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert "longer per decoded token" in first
