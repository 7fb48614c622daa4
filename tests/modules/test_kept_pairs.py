"""Kept rotary pairs, by head, in forms that other programs take."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lrcore.modules.compressed import SIZES, CompressedAttention


class Operations(TorchDispatchMode):
    """Notes what is computed, and the types of what tensors are indexed by."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()
        self.operations: list[object] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.operations.append(operation)
        if operation is torch.ops.aten.index.Tensor:
            self.types |= {one.dtype for one in args[1] if one is not None}
        return operation(*args, **(kwargs or {}))


def test_kept_pairs_are_taken_by_integers_that_onnx_gathers_by(tiny_llama, small_of) -> None:
    small = small_of(tiny_llama, "a3", ratio=0.3)
    assert any(
        isinstance(one, CompressedAttention) and one.rotary_pairs is not None
        for one in small.network.modules()
    )
    with torch.inference_mode(), Operations() as seen:
        small.network(torch.arange(3, 19)[None])
    assert seen.types == {torch.int64}


def kept(pairs: list[list[int]]) -> CompressedAttention:
    sizes = dict.fromkeys(SIZES) | {"n_q": 2, "n_kv": 2, "head_size": 8, "qk_size": 4}
    sizes |= {"position": "rotary", "selected_pairs": True, "v_size": 8, "scale": 1.0}
    attention = CompressedAttention(sizes, 0)
    attention.rotary_pairs.copy_(torch.tensor(pairs))
    return attention


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    cos = torch.arange(8.0).view(1, 1, 8)
    return cos, cos + 10


def test_columns_of_kept_pairs_are_found_once() -> None:
    attention = kept([[0, 2], [1, 3]])
    cos, sin = attention._angles(tables())
    assert cos[0, :, 0].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sin[0, :, 0].tolist() == [[10, 12, 14, 16], [11, 13, 15, 17]]
    with Operations() as seen:
        again, _ = attention._angles(tables())
    assert torch.equal(again, cos)
    assert torch.ops.aten._to_copy.default not in seen.operations
    assert torch.ops.aten.where.self not in seen.operations  # every pair has a position


def test_a_pair_without_a_position_does_not_turn() -> None:
    cos, sin = kept([[0, -1], [1, 3]])._angles(tables())
    assert cos[0, :, 0].tolist() == [[0, 1, 4, 1], [1, 3, 5, 7]]
    assert sin[0, :, 0].tolist() == [[10, 0, 14, 0], [11, 13, 15, 17]]


def test_pairs_that_are_loaded_later_count() -> None:
    attention, other = kept([[0, 2], [1, 3]]), kept([[1, -1], [0, 2]])
    attention._angles(tables())
    attention.load_state_dict(other.state_dict())
    for ours, expected in zip(attention._angles(tables()), other._angles(tables()), strict=True):
        assert torch.equal(ours, expected)


def test_columns_follow_the_module_to_another_device() -> None:
    attention = kept([[0, 2], [1, 3]])
    attention._angles(tables())
    cos, _ = attention.to("meta")._angles(tuple(one.to("meta") for one in tables()))
    assert cos.device.type == "meta"
