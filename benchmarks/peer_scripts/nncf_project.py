"""Quantize a model by NNCF: METHOD MODEL WINDOWS OUT (see benchmarks/peers.py)."""

import sys

import nncf
import torch
from nncf.torch.function_hook import get_hook_storage
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_, folder, windows, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
example = {"input_ids": load_file(windows)["tokens"][:1, :16], "use_cache": False}
compressed = nncf.compress_weights(
    model,
    mode=nncf.CompressWeightsMode.INT4_ASYM,
    group_size=64,
    ratio=1.0,
    ignored_scope=nncf.IgnoredScope(patterns=[".*lm_head.*", ".*embed.*"], validate=False),
    dataset=nncf.Dataset([example]),
)
# The weights are unpacked by hooks, named "post_hooks.model:layers:0:mlp:up_proj:weight__0.0".
packed = dict(compressed.named_parameters())
for name, unpack in get_hook_storage(compressed).named_hooks():
    path = name.split(".")[1].removesuffix("__0").replace(":", ".")
    with torch.no_grad():
        plain.get_parameter(path).copy_(unpack(packed[path]))
plain.save_pretrained(out)
AutoTokenizer.from_pretrained(folder).save_pretrained(out)
