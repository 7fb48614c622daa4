"""Models loaded concurrently in a process, as by the page and its jobs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

import lrcore

# Attributes that transformers and torch patch while a network is built; earlier tests must not
# leave them patched.
CHANGED = [
    (PreTrainedModel, "tie_weights"),
    (PreTrainedModel, "init_weights"),
    (torch.nn.init, "normal_"),
    (torch.nn.init, "kaiming_uniform_"),
]


@pytest.mark.parametrize("compressed", [False, True])
def test_models_loaded_concurrently_leave_the_libraries_unchanged(
    tiny_llama, care, tmp_path, compressed
):
    before = [getattr(*attribute) for attribute in CHANGED], logging.get_verbosity()
    small = lrcore.save(care, tmp_path / "small") if compressed else tiny_llama
    folders = [tiny_llama, small] * 8
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(lambda folder: lrcore.load(str(folder)), folders))
    try:
        assert ([getattr(*attribute) for attribute in CHANGED], logging.get_verbosity()) == before
    finally:  # later tests would fail otherwise
        for (owner, name), original in zip(CHANGED, before[0], strict=True):
            setattr(owner, name, original)
    for model in models[::2]:
        assert model.network.lm_head.weight is model.network.get_input_embeddings().weight
