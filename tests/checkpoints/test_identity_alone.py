"""A factor that is an identity block alone has an empty rest, which is stored and comes back."""

from dataclasses import replace

import torch

import lrcore
from lrcore.forms import IdentityRows
from lrcore.layer import LowRank
from lrcore.models.layers import read_layer, write_layer


def test_an_empty_rest_comes_back(tiny_opt, story_file, tmp_path) -> None:
    dense = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method="latentllm")
    small = lrcore.compress(dense, recipe.with_(ratio=0.3))
    layer = read_layer(small.network, 0)
    own = read_layer(dense.network, 0).attention.k
    heads, size = layer.attention.n_kv, own.weight.shape[0] // layer.attention.n_kv
    place = torch.arange(size).expand(heads, -1).contiguous()
    rest = own.weight.new_empty(heads, 0, size)
    whole = LowRank(down=own.weight, up=IdentityRows(rest, place), bias=own.bias)
    write_layer(small.network, replace(layer, attention=replace(layer.attention, k=whole)))
    ids = torch.arange(3, 23)[None]
    with torch.inference_mode():
        expected = small.network(ids).logits
        for folder in (lrcore.save(small, tmp_path / "a"), lrcore.export(small, tmp_path / "b")):
            for offload in (False, True):
                again = lrcore.load(folder, offload=offload)
                assert torch.equal(again.network(ids).logits, expected)
