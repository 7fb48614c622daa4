"""Typical uses of exports without this package: devices, dtypes, offload and LoRA."""

import json

import pytest
from elsewhere import elsewhere
from tiny_models import family_folder
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.checkpoints.export import lora_targets
from lrcore.layers.modules.adapters import with_inner_linears

METHODS = (
    "svd_llm",
    "a3",
    "latentllm",
    "care",
)  # factored matrices, narrowed heads, shared factors, latent caches

DEVICES = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
tokens = torch.arange(3, 43).view(2, 20)
def load(folder, **how):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **how)

def written(model):
    return model.generate(tokens[:1], max_new_tokens=6, do_sample=False, pad_token_id=2)

for folder in json.loads(sys.argv[1]):
    plain = load(folder)
    with torch.inference_mode():
        wanted = plain(tokens).logits
    parts = {name: "cpu" for name, _ in plain.named_children() if name != "model"}
    inner = [name for name, _ in plain.model.named_children() if name != "layers"]
    parts |= {f"model.{name}": "cpu" for name in inner}
    split = parts | {"model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu"}
    for devices in ("auto", {"": "cpu"}, split):
        model = load(folder, device_map=devices, offload_folder=folder + "-off")
        with torch.inference_mode():
            assert torch.equal(model(tokens).logits, wanted), (folder, devices)
        assert torch.equal(written(model), written(plain)), (folder, devices)
    assert any(p.is_meta for p in model.parameters())  # the layer is on disk
    for dtype in (torch.bfloat16, torch.float16, "auto"):
        model = load(folder, dtype=dtype, device_map="cpu")
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        assert dtypes == {torch.float32 if dtype == "auto" else dtype}
        near = 0.1 * float(wanted.abs().max())
        with torch.inference_mode():
            logits = model(tokens).logits.float()
        assert torch.allclose(logits, wanted, atol=near), (folder, dtype)
"""

LORA = """
import json, pathlib, re, sys
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
tokens = torch.arange(3, 43).view(2, 20)
for folder in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    base.gradient_checkpointing_enable()
    card = (pathlib.Path(folder) / "README.md").read_text()
    named = json.loads(re.search("target_modules=([^`]*)`", card)[1])
    lora = LoraConfig(r=2, target_modules=named, task_type="CAUSAL_LM")
    tuned = get_peft_model(base, lora)
    every = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    every = get_peft_model(every, LoraConfig(r=2, target_modules="all-linear"))
    reached = {name for name, _ in tuned.named_parameters() if "lora_" in name}
    assert reached == {name for name, _ in every.named_parameters() if "lora_" in name}, folder
    tuned.train()
    step = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(3):
        loss = tuned(tokens, labels=tokens).loss
        assert torch.isfinite(loss), folder
        losses.append(float(loss))
        step.zero_grad()
        loss.backward()
        step.step()
    assert losses[-1] < losses[0], (folder, losses)
    for name, value in tuned.get_base_model().state_dict().items():
        if "lora" not in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")]), (folder, name)
    tuned.eval()
    with torch.inference_mode():
        wanted = tuned(tokens).logits
    tuned.save_pretrained(folder + "-adapter")
    fresh = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.inference_mode():
        dense = fresh(tokens).logits
        again = PeftModel.from_pretrained(fresh, folder + "-adapter").eval()
        assert torch.equal(again(tokens).logits, wanted), folder
        assert not torch.allclose(wanted, dense), folder
        merged = again.merge_and_unload()
        assert torch.allclose(merged(tokens).logits, wanted, atol=1e-4), folder
    merged.save_pretrained(folder + "-merged")
    with torch.inference_mode():
        kept = AutoModelForCausalLM.from_pretrained(folder + "-merged", trust_remote_code=True)
        assert torch.allclose(kept(tokens).logits, wanted, atol=1e-4), folder
"""


BY_NAMES = """
import json, sys
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
tokens = torch.arange(3, 43).view(2, 20)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

for folder in json.loads(sys.argv[1]):
    for names in (ALL, ["q_proj"], None):
        torch.manual_seed(0)
        base = load(folder)
        config = LoraConfig(r=2, target_modules=names, task_type="CAUSAL_LM")
        tuned = get_peft_model(base, config)
        reached = {name.split(".self_attn.")[-1].split(".mlp.")[-1].split(".")[0]
                   for name, _ in tuned.named_parameters() if "lora_" in name}
        assert reached == set(names or ["q_proj", "v_proj"]), (folder, names, reached)
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        tuned.eval()
        with torch.inference_mode():
            wanted = tuned(tokens).logits
            assert not torch.allclose(wanted, load(folder)(tokens).logits)
            tuned.save_pretrained(folder + "-named")
            again = PeftModel.from_pretrained(load(folder), folder + "-named").eval()
            assert torch.equal(again(tokens).logits, wanted), (folder, names)
            merged = again.merge_and_unload()
            assert torch.allclose(merged(tokens).logits, wanted, atol=1e-4), (folder, names)
"""


@pytest.fixture(scope="module")
def exports_folder(tiny_llama, story_file, tmp_path_factory):
    """Return a folder with exports of several methods, each named after its method."""
    folder = tmp_path_factory.mktemp("exported")
    for method in METHODS:
        recipe = lrcore.Recipe(
            model=str(tiny_llama),
            data=str(story_file),
            samples=4,
            seq_len=32,
            ratio=0.2,
            method=method,
        )
        lrcore.export(lrcore.compress(lrcore.load(str(tiny_llama)), recipe), folder / method)
    return folder


def test_exports_work_with_device_maps_offload_and_dtypes(exports_folder) -> None:
    elsewhere(
        DEVICES,
        json.dumps([str(exports_folder / method) for method in METHODS]),
        cwd=exports_folder,
    )


def test_the_model_card_names_the_target_modules_for_lora(
    exports_folder, tiny_llama, small_of, tmp_path
) -> None:
    card = (exports_folder / "svd_llm" / "README.md").read_text()
    assert '"q_proj.down", "q_proj.up"' in card
    joint = small_of(tiny_llama, "care", options={"joint": True})
    # they share a down factor
    assert lora_targets(joint.network)[1:3] == ("k_proj.up", "v_proj.up")
    mixed = small_of(tiny_llama, "svd", ratio=0.1, rank_overrides={"0.q": 32})
    assert lora_targets(mixed.network) == ("all-linear",)
    quantized = lrcore.export(lrcore.quantize(lrcore.load(tiny_llama), bits=4), tmp_path / "four")
    card = (quantized / "README.md").read_text()
    assert "target_modules" not in card
    assert "PEFT cannot train its layers" in card
    _, info = AutoModelForCausalLM.from_pretrained(
        quantized, trust_remote_code=True, output_loading_info=True
    )
    assert not info["missing_keys"]  # missing weights would be initialized at random


def test_lora_accepts_the_module_names_of_the_family_and_its_defaults(
    exports_folder, tiny_llama, story_file, tmp_path
) -> None:
    exports = [str(exports_folder / method) for method in METHODS]
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    mixed = recipe.with_(method="svd", ratio=0.1, rank_overrides={"0.q": 32})  # q_proj at full rank
    shared = recipe.with_(method="care", options={"joint": True})  # keys and values share a latent
    for name, variant in (("mixed", mixed), ("shared", shared)):
        small = lrcore.compress(lrcore.load(tiny_llama), variant)
        exports.append(str(lrcore.export(small, tmp_path / name)))
    elsewhere(BY_NAMES, json.dumps(exports), cwd=exports_folder)


JOINT = """
import json, sys
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
for folder in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tuned = get_peft_model(model, LoraConfig(r=2, task_type="CAUSAL_LM"))
    reached = [name for name, _ in tuned.named_parameters() if "lora_A" in name]
    for part in ("q_proj", "k_proj", "v_proj"):
        assert any(f".{part}." in name for name in reached), (folder, part, reached)
"""


def test_lora_reaches_queries_keys_and_values_of_families_with_a_joint_matrix(
    tiny_llama, small_of, tmp_path
) -> None:
    """The default target is a matrix that compressed attention does not have."""
    exports = []
    for family in ("gpt2", "gpt_neox", "bloom", "falcon", "mpt"):
        dense = family_folder(family, tiny_llama, tmp_path / f"{family}-dense")
        small = small_of(dense, "svd_llm", samples=2, seq_len=24)
        exports.append(str(lrcore.export(small, tmp_path / family)))
    elsewhere(JOINT, json.dumps(exports), cwd=tmp_path)


def test_lora_reaches_gates_and_ups_of_families_with_a_joint_matrix(small_of, tiny_llama, tmp_path):
    for family in ("glm4", "phi3"):
        dense = family_folder(family, tiny_llama, tmp_path / family)
        small = small_of(dense, "a3", samples=2, seq_len=24, ratio=0.3)
        separate = {"gate_up_proj", "gate_proj", "up_proj"}
        assert with_inner_linears(small.network, {"gate_up_proj"}) == separate
        assert with_inner_linears(lrcore.load(dense).network, {"gate_up_proj"}) == {"gate_up_proj"}


def test_lora_adapters_are_trained_saved_loaded_and_merged(exports_folder) -> None:
    elsewhere(
        LORA, json.dumps([str(exports_folder / method) for method in METHODS]), cwd=exports_folder
    )
