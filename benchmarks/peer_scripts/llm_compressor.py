"""Compress a model by llm-compressor: METHOD MODEL WINDOWS OUT (see benchmarks/peers.py)."""

import sys

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.obcq import SparseGPTModifier
from llmcompressor.modifiers.pruning import WandaPruningModifier
from llmcompressor.modifiers.quantization import GPTQModifier
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

method, folder, windows, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
tokens = load_file(windows)["tokens"].tolist()
data = Dataset.from_dict({"input_ids": tokens, "attention_mask": [[1] * len(t) for t in tokens]})
weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 64}
groups = {"all": {"targets": ["Linear"], "weights": weights}}
sparse = {"sparsity": 0.5, "mask_structure": "2:4", "ignore": ["re:.*lm_head"]}
modifiers = {
    "gptq": lambda: GPTQModifier(config_groups=groups, ignore=["lm_head"]),
    "sparsegpt": lambda: SparseGPTModifier(**sparse),
    "wanda": lambda: WandaPruningModifier(**sparse),
}
oneshot(
    model=model,
    tokenizer=tokenizer,
    dataset=data,
    recipe=[modifiers[method]()],
    max_seq_length=len(tokens[0]),
    num_calibration_samples=len(tokens),
)
# Rounded weights are stored as such until they are packed for a file.
names = set(plain.state_dict())
plain.load_state_dict({k: v for k, v in model.state_dict().items() if k in names})
plain.save_pretrained(out)
tokenizer.save_pretrained(out)
