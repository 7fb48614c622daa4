"""Quantize a model by hqq: METHOD MODEL WINDOWS OUT (see benchmarks/peers.py)."""

import sys

import torch
from hqq.core.quantize import BaseQuantizeConfig, Quantizer
from transformers import AutoModelForCausalLM, AutoTokenizer

_, folder, _, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
# Groups within rows; by default they extend over the rows of a column.
settings = BaseQuantizeConfig(nbits=4, group_size=64, axis=1)["weight_quant_params"]
for module in model.model.layers.modules():
    if isinstance(module, torch.nn.Linear):
        codes, meta = Quantizer.quantize(
            module.weight.data, **settings, device="cpu", compute_dtype=torch.float32
        )
        module.weight.data = Quantizer.dequantize(codes, meta)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder).save_pretrained(out)
