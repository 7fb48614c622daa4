"""Projection of a plan's ratios onto another model, without weights."""

import json

import pytest

import lrcore
from lrcore.cli import main
from lrcore.compression.what_if import MODEL_SHAPES, _at_depth
from lrcore.ranks.plan import RankPlan
from lrcore.system.path_access import restrict_paths

PUBLISHED = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Qwen2.5-7B": 7_615_616_512,
}


@pytest.fixture(scope="module")
def plan_of(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))

    def plan(method: str, **changes) -> RankPlan:
        recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method=method)
        recipe = recipe.with_(ratio=0.3, **changes)
        return lrcore.allocate(lrcore.prepare(model, recipe), recipe)

    return plan


@pytest.mark.parametrize("method", ["a3", "svd_llm", "care", "mha2mla", "flap"])
def test_projection_onto_the_same_model_is_the_plan(plan_of, tiny_llama, method) -> None:
    policy = "softmax" if method in ("a3", "svd_llm") else "uniform"
    plan = plan_of(method, policy=policy)
    projected = lrcore.what_if(plan, method, tiny_llama)
    account = plan.account
    assert projected.parameters == pytest.approx(account.model.parameters, abs=2)
    assert projected.dense_parameters == account.dense.parameters
    itemsize = plan.shape.itemsize
    assert projected.kv_values * itemsize == pytest.approx(account.model.kv_bytes_per_token, abs=4)
    assert projected.dense_kv_values * itemsize == account.dense.kv_bytes_per_token
    assert projected.unchanged == ()


@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_shapes_have_the_parameters_of_the_published_models(plan_of, name) -> None:
    plan = plan_of("a3")
    projected = lrcore.what_if(plan, "a3", name)
    assert projected.dense_parameters == PUBLISHED[name]
    assert projected.memory(0, dense=True) == 2 * PUBLISHED[name]
    cache_share = plan.account.model.kv_bytes_per_token / plan.account.dense.kv_bytes_per_token
    assert projected.kv_values / projected.dense_kv_values == pytest.approx(cache_share, rel=1e-3)
    assert projected.parameters < projected.dense_parameters
    assert projected.fits(2e-9 * projected.parameters + 1e-6, context=0)
    assert not projected.fits(2e-9 * projected.parameters, context=1)


def test_ratios_are_interpolated_by_depth_and_keep_their_mean() -> None:
    def spread(values, layers):
        return [_at_depth(values, index, layers) for index in range(layers)]

    assert spread([0.2, 0.6], 4) == pytest.approx([0.2, 0.2, 0.6, 0.6])
    assert spread([0.2, 0.6], 3) == pytest.approx([0.2, 0.4, 0.6])
    assert spread([0.2, 0.4, 0.9], 1) == pytest.approx([0.5])
    assert spread([0.5], 3) == pytest.approx([0.5] * 3)
    values = [0.1, 0.9, 0.4, 0.3, 0.8]
    assert sum(spread(values, 7)) / 7 == pytest.approx(sum(values) / 5)


def test_components_missing_in_the_plan_are_reported_as_unchanged(plan_of, tiny_opt) -> None:
    projected = lrcore.what_if(plan_of("svd"), "svd", tiny_opt)
    assert projected.unchanged == ("gate",)


def test_invalid_model_configs_raise(plan_of, tmp_path) -> None:
    plan = plan_of("a3")
    (tmp_path / "config.json").write_text("[1, 2]", encoding="utf-8")
    for config, sentence in (
        ("Llama-3-8", "Did you mean 'Llama-3-8B'?"),
        (tmp_path, "is not a JSON object"),
        ({"model_type": "nonsense"}, "nonsense"),
        ({"model_type": "llama", "hidden_size": "wide"}, "not a valid llama config"),
    ):
        with pytest.raises(lrcore.InputError, match=sentence) as error:
            lrcore.what_if(plan, "a3", config)
        assert "/tmp/" not in str(error.value) or str(tmp_path) in str(error.value)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(lrcore.InputError, match="is not JSON"):
        lrcore.what_if(plan, "a3", tmp_path)


def test_command_line_projects_onto_a_named_model(tiny_llama, story_file, capsys) -> None:
    flags = ["--data", str(story_file), "--samples", "4", "--seq-len", "32", "--ratio", "0.3"]
    arguments = ["allocate", str(tiny_llama), *flags, "--json"]
    assert main([*arguments, "--what-if", "Qwen2.5-7B", "--context", "100"]) == 0
    projected = json.loads(capsys.readouterr().out)["what_if"]
    assert projected["dense_bytes"] == 2 * PUBLISHED["Qwen2.5-7B"] + 100 * 57_344
    assert projected["bytes"] < projected["dense_bytes"]
    assert main(["allocate", "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ", ".join(MODEL_SHAPES) in listed
    assert main([*arguments, "--what-if", "Qwen2.5-8B"]) == 2
    assert "Did you mean 'Qwen2.5-7B'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": -8}, "does not define a model of type llama|not a valid llama"),
        ({"num_attention_heads": 0}, "does not define a model of type llama|not a valid llama"),
        ({"vocab_size": 10**30}, "does not define a model of type llama|not a valid llama"),
        # transformers builds a list of this length for each of these fields, for hours
        ({"model_type": "qwen3", "num_hidden_layers": 10**12}, "models have at most"),
        (
            {"model_type": "gpt_neo", "attention_types": [[["global"], 10**12]]},
            "models have at most",
        ),
        ({"text_config": {"num_hidden_layers": 10**12}}, "models have at most"),
    ],
)
def test_invalid_sizes_raise(plan_of, fields, message) -> None:
    with pytest.raises(lrcore.InputError, match=message):
        lrcore.what_if(plan_of("a3"), "a3", {"model_type": "llama"} | fields)


def test_config_cannot_load_code_from_the_hub(plan_of, monkeypatch) -> None:
    """Attention kernels are compiled code, which transformers would download."""
    named = []
    monkeypatch.setattr("transformers.modeling_utils.is_kernel", named.append)
    for field in ("attn_implementation", "experts_implementation", "_attn_implementation"):
        config = {"model_type": "llama", field: "kernels-community/flash-attn"}
        assert lrcore.what_if(plan_of("a3"), "a3", config).name == "llama"
    assert named
    assert not {name for name in named if name and "/" in name}


def test_restricted_server_reads_no_config_outside_its_folders(plan_of, tmp_path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(MODEL_SHAPES["Llama-2-7B"]))
    restrict_paths([tmp_path / "allowed"])
    try:
        for name in (tmp_path, tmp_path / "config.json", "../config.json"):
            with pytest.raises(lrcore.InputError, match="outside the folders"):
                lrcore.what_if(plan_of("a3"), "a3", name)
    finally:
        restrict_paths([])
