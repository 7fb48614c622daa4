"""Fingerprints of models, equal on all machines and in all folders.

Model and text are written from integers and text only, so that all machines have the same bytes;
the expected fingerprints are in this file. Fingerprints do not depend on rounding, unlike the
weights of compressed models.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from fresh import ROOT, Fresh
from safetensors.torch import save_file

TOKENIZER = ROOT / "tests" / "fixtures" / "released" / "small"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "dtype": "float32",
    "head_dim": 4,
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": 300,
}
MODEL_SHAPES = {
    "model.embed_tokens.weight": (300, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (300, 8),
}
TEXT = "Once upon a time there was a little girl. “Where is my kite?” asked Ben.\n" * 20

# Expected fingerprints. The fingerprint of a network in memory is omitted, because it depends on
# the config class of transformers.
KNOWN = {
    "folder": "0161a22e6e53e158b2af0964f1a3ea7b0a0df60cf95e52d7c899542e3ebf9276",
    "text": "69344d89e2e8ecce8184b4a2e4d5149e66760babdbf9ace594cb60fb30947a5c",
    "compressed": "889d7ef9ae07dce2350eb16b69375b29fc9ab1331df6e91d42bf739a3285e952",
    "healed": "fabdf44ef42f1758924d594cc3e099ebc48ec5ce2c0f09297a4033e4b5730cda",
    "quantised": "f40fabb77560801d14ef8b22080b368da1a07f41e7e8e833a741a74fbd4c23ce",
    "cache": "c4c59fafb505854c9b07e03c",
}

# Script that prints the fingerprints of a model, a text and their results. Arguments: the folder of
# the model, the text, and the order of names, "other" for a second one.
MADE = """
import json, sys
import torch
import lrcore
from lrcore.data import load_texts
from lrcore.system.files import cache_key

folder, text, other = sys.argv[1], sys.argv[2], sys.argv[3] == "other"
torch.set_num_threads(2 if other else 1)
pairs = [("whitening", "root"), ("shrinkage", 0.0)]
options = dict(reversed(pairs) if other else pairs)
recipe = lrcore.Recipe(
    folder, data=text, samples=4, seq_len=16, method="care", options=options, ratio=0.5,
    offload=other, device="cpu" if other else "auto",
)
model = lrcore.load(folder, offload=other)
small = lrcore.compress(model, recipe)
network = lrcore.load(folder).network
heal = lrcore.Healing(data=text, samples=2, seq_len=8, steps=1, batch=2, test_samples=0)
whole = small if not other else lrcore.compress(lrcore.load(folder), recipe.with_(offload=False))
known = {
    "folder": model.fingerprint,
    "in memory": lrcore.load(network, model.tokenizer).fingerprint,
    "text": load_texts(text).fingerprint,
    "compressed": small.fingerprint,
    "healed": lrcore.heal(whole, heal, teacher=lrcore.load(folder)).fingerprint,
    "quantised": lrcore.quantize(whole, 4, 8, quantizer="gptq", recipe=recipe).fingerprint,
    "cache": cache_key(options, 0.1, None, "“"),
}
print("KNOWN" + json.dumps(known))
"""


def write_model(folder: Path) -> None:
    """Write a Llama with small integers over 64 as weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    tensors = {}
    for seed, (name, shape) in enumerate(MODEL_SHAPES.items()):
        numbers = torch.arange(int(torch.tensor(shape).prod()))
        tensors[name] = ((numbers * (7 + 2 * seed) + seed) % 31 - 15).float().view(shape) / 64
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)


def fingerprints_of_subprocess(folder: Path, order: str, **environment: str) -> dict[str, str]:
    """Return the fingerprints that a process with a different environment prints for a folder."""
    write_model(folder / "model")
    text = folder / "some text.txt"
    text.write_text(TEXT, encoding="utf-8")
    if order == "other":
        for file in [text, *(folder / "model").iterdir()]:
            os.utime(file, (1e9, 1e9))
    variables = os.environ | environment | {"LRCORE_CACHE": str(folder / "cache")}
    process = Fresh(("lrcore",), variables, [str(ROOT)])
    try:
        done = process.run(["-c", MADE, folder / "model", text, order], variables, folder)
    finally:
        process.close()
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("KNOWN"))
    return json.loads(line.removeprefix("KNOWN"))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> list[dict[str, str]]:
    """Return the fingerprints of a pair of processes with equal files and different
    environments.
    """
    first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other place")
    return [
        fingerprints_of_subprocess(
            first, "one", PYTHONHASHSEED="1", TZ="UTC", LC_ALL="C", LANG="C"
        ),
        fingerprints_of_subprocess(
            second / "ä folder" / "deep",
            "other",
            PYTHONHASHSEED="4711",
            TZ="Pacific/Auckland",
            LC_ALL="C.UTF-8",
            PYTHONUTF8="1",
        ),
    ]


def test_fingerprints_do_not_depend_on_the_folder_or_the_environment(two_processes) -> None:
    assert two_processes[0] == two_processes[1]
    assert len(set(two_processes[0].values())) == len(two_processes[0])


def test_fingerprints_equal_the_recorded_ones(two_processes) -> None:
    assert {name: two_processes[0][name] for name in KNOWN} == KNOWN
