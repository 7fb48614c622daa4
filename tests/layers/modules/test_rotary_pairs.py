"""Rotary pairs retained per head, in operations that other programs support."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lrcore.layers.modules.compressed import SIZES, CompressedAttention


class Operations(TorchDispatchMode):
    """Record all operations and the dtypes of index tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()
        self.operations: list[object] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.operations.append(operation)
        if operation is torch.ops.aten.index.Tensor:
            self.types |= {index.dtype for index in args[1] if index is not None}
        return operation(*args, **(kwargs or {}))


def test_rotary_pairs_are_gathered_by_int64_indices(tiny_llama, small_of) -> None:
    small = small_of(tiny_llama, "a3", ratio=0.3)
    assert any(
        isinstance(module, CompressedAttention) and module.rotary_pairs is not None
        for module in small.network.modules()
    )
    with torch.inference_mode(), Operations() as seen:
        small.network(torch.arange(3, 19)[None])
    assert seen.types == {torch.int64}


def attention_with(pairs: list[list[int]]) -> CompressedAttention:
    sizes = dict.fromkeys(SIZES) | {"n_q": 2, "n_kv": 2, "head_size": 8, "qk_size": 4}
    sizes |= {"position": "rotary", "selected_pairs": True, "selected_heads": False}
    sizes |= {"v_size": 8, "scale": 1.0}
    attention = CompressedAttention(sizes, 0)
    attention.rotary_pairs.copy_(torch.tensor(pairs))
    return attention


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    cos = torch.arange(8.0).view(1, 1, 8)
    return cos, cos + 10


def test_columns_of_rotary_pairs_are_computed_once() -> None:
    attention = attention_with([[0, 2], [1, 3]])
    cos, sin = attention._angles(tables())
    assert cos[0, :, 0].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sin[0, :, 0].tolist() == [[10, 12, 14, 16], [11, 13, 15, 17]]
    with Operations() as seen:
        second, _ = attention._angles(tables())
    assert torch.equal(second, cos)
    assert torch.ops.aten._to_copy.default not in seen.operations
    assert torch.ops.aten.where.self not in seen.operations  # all pairs have positions


def test_pair_without_a_position_is_not_rotated() -> None:
    cos, sin = attention_with([[0, -1], [1, 3]])._angles(tables())
    assert cos[0, :, 0].tolist() == [[0, 1, 4, 1], [1, 3, 5, 7]]
    assert sin[0, :, 0].tolist() == [[10, 0, 14, 0], [11, 13, 15, 17]]


def test_loading_pairs_replaces_cached_columns() -> None:
    attention, loaded = attention_with([[0, 2], [1, 3]]), attention_with([[1, -1], [0, 2]])
    attention._angles(tables())
    attention.load_state_dict(loaded.state_dict())
    for ours, expected in zip(attention._angles(tables()), loaded._angles(tables()), strict=True):
        assert torch.equal(ours, expected)


def test_cached_columns_follow_the_module_to_its_device() -> None:
    attention = attention_with([[0, 2], [1, 3]])
    attention._angles(tables())
    cos, _ = attention.to("meta")._angles(tuple(table.to("meta") for table in tables()))
    assert cos.device.type == "meta"
