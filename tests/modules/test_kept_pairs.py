"""Kept rotary pairs, by head, in forms that other programs take."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lrcore.modules.compressed import CompressedAttention


class Indices(TorchDispatchMode):
    """Notes the types of what tensors are indexed by."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten.index.Tensor:
            self.types |= {one.dtype for one in args[1] if one is not None}
        return operation(*args, **(kwargs or {}))


def test_kept_pairs_are_taken_by_integers_that_onnx_gathers_by(tiny_llama, small_of) -> None:
    small = small_of(tiny_llama, "a3", ratio=0.3)
    assert any(
        isinstance(one, CompressedAttention) and one.rotary_pairs is not None
        for one in small.network.modules()
    )
    with torch.inference_mode(), Indices() as seen:
        small.network(torch.arange(3, 19)[None])
    assert seen.types == {torch.int64}
