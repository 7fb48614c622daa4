"""GGUF exports: equality with the model when read back, errors and notes. For llama.cpp see
test_gguf_llama_cpp.py.
"""

import json

import pytest
import torch
from tiny_models import family_folder

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

import lrcore  # noqa: E402
from lrcore.checkpoints.gguf.gguf_vocabulary import vocabulary  # noqa: E402
from lrcore.cli import main  # noqa: E402

IDS = torch.arange(3, 60)[None]
TEXT = "Once “upon” a time, 12 kites </s> flew."
EVEN = {f"{layer}.{name}": rank for layer in range(3) for name, rank in (("mlp", 24), ("qk", 4))}
EVEN |= {f"{layer}.ov": 5 for layer in range(3)}


def logits(model, tokens=57):
    with torch.inference_mode():
        return model.network(IDS[:, :tokens]).logits


def header(path):
    """Return the metadata of a file by name."""
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_a_dense_gguf_file_is_restored_bit_for_bit(tiny_llama, tmp_path) -> None:
    model = lrcore.load(tiny_llama)
    exported = lrcore.export_gguf(model, tmp_path / "a.gguf", "f32")
    reloaded = lrcore.load(exported.path)
    assert torch.equal(logits(reloaded), logits(model))
    assert reloaded.tokenizer(TEXT).input_ids == model.tokenizer(TEXT).input_ids
    assert (exported.parameters, exported.notes) == (model.size.parameters, ())
    assert (exported.architecture, exported.kv_values) == ("llama", model.size.kv_values)
    assert exported.bytes == exported.path.stat().st_size
    assert str(tiny_llama) not in exported.path.read_bytes().decode("latin-1")


def test_an_offloaded_model_gives_the_same_gguf_file(tiny_llama, tmp_path) -> None:
    paths = [
        lrcore.export_gguf(
            lrcore.load(tiny_llama, offload=offload), tmp_path / f"{offload}.gguf"
        ).path
        for offload in (False, True)
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_biases_and_untied_embeddings_are_restored_bit_for_bit(tiny_llama, tmp_path) -> None:
    folder = family_folder("qwen2", tiny_llama, tmp_path / "qwen2")
    model = lrcore.load(folder)
    exported = lrcore.export_gguf(model, tmp_path / "a.gguf", "f32")
    window = model.network.config.sliding_window
    assert torch.equal(logits(lrcore.load(exported.path), window), logits(model, window))
    assert header(exported.path)["qwen2.context_length"] == window
    assert exported.notes == (f"the context is limited to the sliding window, {window}",)


@pytest.mark.parametrize("method", ["svd_llm", "a3", "modegpt", "latentllm", "care"])
def test_factors_are_multiplied_out_and_heads_are_padded(method, tiny_llama, small_of, tmp_path):
    changes = {"rank_overrides": EVEN} if method in ("a3", "modegpt") else {}
    small = small_of(tiny_llama, method, ratio=0.2, **changes)
    exported = lrcore.export_gguf(small, tmp_path / "a.gguf", "f32")
    back = lrcore.load(exported.path)
    torch.testing.assert_close(logits(back), logits(small), atol=1e-4, rtol=1e-4)
    assert exported.kv_values == 96
    notes = "; ".join(exported.notes)
    assert ("multiplied out" in notes) == (not changes)
    assert ("the heads of 3 layers were padded" in notes) == bool(changes)
    assert f"the file has {exported.parameters:,} parameters" in notes
    fewer = small.size.kv_values < 96
    assert (f"96 numbers per token instead of {small.size.kv_values}" in notes) == fewer


def test_layers_of_different_sizes_use_the_architecture_deci(
    tiny_llama, small_of, tmp_path
) -> None:
    widths = {"0.mlp": 40, "1.mlp": 24, "2.mlp": 33}
    small = small_of(tiny_llama, "modegpt", ratio=0.1, rank_overrides=widths)
    exported = lrcore.export_gguf(small, tmp_path / "a.gguf", "q8_0")
    output = header(exported.path)
    assert (exported.architecture, output["general.architecture"]) == ("deci", "deci")
    assert output["deci.feed_forward_length"] == [40, 24, 33]
    assert output["deci.attention.head_count_kv"] == [2, 2, 2]
    kinds = {
        tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(exported.path).tensors
    }
    assert kinds["blk.0.ffn_up.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_down.weight"] == "F16"  # rows of 40 are not full blocks of 32
    assert kinds["blk.0.ffn_norm.weight"] == "F32"
    assert "3 matrices are f16, since their rows are not a multiple of 32" in exported.notes
    with pytest.raises(
        lrcore.InputError, match=r"the architecture deci, .* Load the original checkpoint"
    ):
        lrcore.load(exported.path)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_matrices_are_rounded_to_the_requested_type(kind, tiny_llama, tmp_path) -> None:
    model = lrcore.load(tiny_llama)
    back = lrcore.load(lrcore.export_gguf(model, tmp_path / "a.gguf", kind).path)
    error = (logits(back) - logits(model)).norm() / logits(model).norm()
    assert 0 < error < {"f16": 0.01, "bf16": 0.05, "q8_0": 0.05}[kind]


def test_a_number_beyond_the_range_of_the_type_is_refused(tiny_llama, tmp_path) -> None:
    """The value would be infinity in the file."""
    model = lrcore.load(tiny_llama)
    model.network.model.layers[1].mlp.up_proj.weight[0, 0] = 70_000.0
    with pytest.raises(
        lrcore.InputError,
        match=r"blk\.1\.ffn_up\.weight contains 70000, which exceeds the limit of F16",
    ):
        lrcore.export_gguf(model, tmp_path / "a.gguf", "f16")
    assert not list(tmp_path.iterdir())
    for kind in ("f32", "bf16", "q8_0"):
        back = lrcore.load(lrcore.export_gguf(model, tmp_path / f"{kind}.gguf", kind).path)
        assert torch.isfinite(logits(back)).all()


@pytest.mark.parametrize(
    ("family", "reason"),
    [("opt", "its family is opt"), ("phi", "its family is phi")],
)
def test_unsupported_families_are_refused(family, reason, tiny_llama, tmp_path) -> None:
    model = lrcore.load(family_folder(family, tiny_llama, tmp_path / family))
    with pytest.raises(lrcore.InputError, match=reason):
        lrcore.export_gguf(model, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()


def test_models_that_llama_cpp_cannot_run_are_refused(tiny_llama, story_file, tmp_path) -> None:
    model = lrcore.load(tiny_llama)
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    sliced = lrcore.slice_hidden(model, recipe.with_(ratio=0.2))
    with pytest.raises(lrcore.InputError, match="residual stream is sliced"):
        lrcore.export_gguf(sliced, tmp_path / "a.gguf")
    model.network.config.rope_parameters["rope_type"] = "yarn"
    with pytest.raises(lrcore.InputError, match="scaled by 'yarn'"):
        lrcore.export_gguf(model, tmp_path / "a.gguf")


def test_a_tokenizer_that_llama_cpp_would_misread_is_refused(tiny_llama) -> None:
    tokenizer = lrcore.load(tiny_llama).tokenizer
    described = json.loads(tokenizer.backend_tokenizer.to_str())

    class FakeTokenizer:
        """Tokenizer with a changed description."""

        def __init__(self, changes) -> None:
            self.backend_tokenizer = self
            self.text = json.dumps(described | changes)

        def to_str(self) -> str:
            return self.text

    with pytest.raises(lrcore.InputError, match="type Unigram"):
        vocabulary(FakeTokenizer({"model": described["model"] | {"type": "Unigram"}}), 300)
    with pytest.raises(lrcore.InputError, match=r"pre-tokenizer \(Whitespace\)"):
        vocabulary(FakeTokenizer({"pre_tokenizer": {"type": "Whitespace"}}), 300)


def test_the_command_reports_changes_and_refuses_invalid_options(
    tiny_llama, small_of, tmp_path, capsys
) -> None:
    lrcore.save(small_of(tiny_llama, "svd_llm", ratio=0.2), tmp_path / "small")
    command = ["export", str(tmp_path / "small"), str(tmp_path / "small.gguf"), "--format", "gguf"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "low-rank or quantized matrices were multiplied out; the file has" in printed
    assert main([*command, "--type", "q4", "--json"]) == 2
    assert "Unknown type 'q4'. Known: bf16, f16, f32, q8_0." in capsys.readouterr().err
    assert main([*command, "--standard"]) == 2
    assert "not to GGUF files" in capsys.readouterr().err
    assert main(["export", "x", "y", "--format", "guff"]) == 2
    assert "Did you mean 'gguf'?" in capsys.readouterr().err
    assert main(["export", "x", "y.bin", "--format", "gguf"]) == 2
    assert "ends in .gguf" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "small"), str(tmp_path / "folder.gguf")]) == 2
    assert "Add --format gguf, or enter the name of a folder." in capsys.readouterr().err
    assert not (tmp_path / "folder.gguf").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--type", "q8_0"], "Omit --type, or add --format gguf"),
        (["--type", "f16", "--format", "vllm"], "Omit --type, or add --format gguf"),
        (["--type", "f16", "--format", "mla"], "Omit --type, or add --format gguf"),
        (["--type", "f16", "--standard"], "Omit --type, or add --format gguf"),
        (["--public"], "Add --push-to-hub, or omit --public"),
        (["--result", "FILE", "--format", "gguf"], "Omit it for a GGUF file"),
    ],
    ids=str,
)
def test_flags_without_effect_are_refused(flags, reason, tiny_llama, tmp_path, capsys) -> None:
    result, out = tmp_path / "result.json", tmp_path / ("out.gguf" if "gguf" in flags else "out")
    result.write_text(json.dumps({"perplexity": 2.0, "protocol": "windows"}))
    arguments = [str(result) if field == "FILE" else field for field in flags]
    assert main(["export", str(tiny_llama), str(out), *arguments]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert reason in output.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("family", "method", "reason"),
    [
        (
            "qwen3",
            "fused",
            "in layer 0 matrices have biases, which qwen3 in llama.cpp does not support",
        ),
        ("gemma", "", "its output embedding is not the input embedding, as gemma requires"),
        (
            "qwen3",
            "scaled",
            "its rotary positions are scaled, which qwen3 in llama.cpp does not support",
        ),
    ],
)
def test_features_that_a_family_lacks_in_llama_cpp_are_refused(
    family, method, reason, tiny_llama, story_file, tmp_path
):
    model = lrcore.load(family_folder(family, tiny_llama, tmp_path / family))
    config = model.network.config
    if method == "scaled":
        config.rope_parameters = config.rope_parameters | {"rope_type": "linear", "factor": 2.0}
        model.network.model.rotary_emb.inv_freq /= 2
    elif method:
        fewer = {"rank_overrides": {"0.heads": 2}} if method == "llm_pruner" else {}
        recipe = lrcore.Recipe(method=method, ratio=0.2, samples=2, seq_len=24, **fewer)
        model = lrcore.compress(model, recipe.with_(data=str(story_file)))
    else:
        head = model.network.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.clone())
    with pytest.raises(lrcore.InputError, match=reason):
        lrcore.export_gguf(model, tmp_path / "a.gguf")


def test_layers_that_lost_heads_are_padded_with_zeros(tiny_llama, story_file, tmp_path) -> None:
    """test_gguf_llama_cpp.py runs such files in llama.cpp."""
    model = lrcore.load(family_folder("qwen3", tiny_llama, tmp_path / "qwen3"))
    recipe = lrcore.Recipe(method="llm_pruner", ratio=0.2, samples=2, seq_len=24)
    recipe = recipe.with_(data=str(story_file), rank_overrides={"0.heads": 1, "1.heads": 2})
    small = lrcore.compress(model, recipe)
    exported = lrcore.export_gguf(small, tmp_path / "a.gguf", "f32")
    assert header(exported.path)["qwen3.attention.head_count_kv"] == 2
    assert "1 layers have heads of zeros, up to 2 of keys and values" in exported.notes
    assert exported.kv_values == model.size.kv_values > small.size.kv_values
