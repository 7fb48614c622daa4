"""Shared parts of the healing tests: settings of a quick healing, and the logits of a model."""

import torch

TOKENS = torch.randint(3, 300, (3, 40), generator=torch.Generator().manual_seed(5))
QUICK = {"samples": 8, "seq_len": 24, "steps": 4, "batch": 3, "lr": 1e-2, "test_samples": 0}


@torch.inference_mode()
def logits(model, tokens=TOKENS):
    return model.network(tokens).logits
