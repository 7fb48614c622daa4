"""Factors that consist of an identity block only, stored and loaded with an empty remainder."""

from dataclasses import replace

import torch

import lrcore
from lrcore.layers.forms import IdentityRows
from lrcore.layers.layer import LowRank
from lrcore.models.layers import read_layer, write_layer


def test_an_identity_factor_with_an_empty_remainder_is_restored(
    tiny_opt, story_file, tmp_path
) -> None:
    dense = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method="latentllm")
    small = lrcore.compress(dense, recipe.with_(ratio=0.3))
    layer = read_layer(small.network, 0)
    keys = read_layer(dense.network, 0).attention.k
    heads, size = layer.attention.n_kv, keys.weight.shape[0] // layer.attention.n_kv
    order = torch.arange(size).expand(heads, -1).contiguous()
    remainder = keys.weight.new_empty(heads, 0, size)
    pair = LowRank(down=keys.weight, up=IdentityRows(remainder, order), bias=keys.bias)
    write_layer(small.network, replace(layer, attention=replace(layer.attention, k=pair)))
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        expected = small.network(ids).logits
        for folder in (lrcore.save(small, tmp_path / "a"), lrcore.export(small, tmp_path / "b")):
            for offload in (False, True):
                reloaded = lrcore.load(folder, offload=offload)
                assert torch.equal(reloaded.network(ids).logits, expected)
