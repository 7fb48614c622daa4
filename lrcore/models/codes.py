"""Matrices from the codes and scales of published quantization formats, in float32."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]
AWQ_BITS = 4
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # positions of eight consecutive columns in an integer
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1 without the sign, which is the highest bit
EXPONENT_BIAS = 127  # of E8M0 scales: 2 ** (code - 127)
INT8_MAX = 127  # bitsandbytes: a row of 8 bits is code * SCB / 127


def scaled(
    codes: Tensor, scale: Tensor, zero: Tensor | None, block: Sequence[int] | None
) -> Tensor:
    """Return (codes - zero) * scale, [out, in], from codes [out, in].

    scale: a number, or [rows, columns] of blocks of the codes. block: shape of a block; None if the
    blocks fill the matrix evenly. The last blocks of a row and a column may be smaller.
    """
    rows, columns = codes.shape
    values = codes.float()
    if zero is not None:
        values = values - _expanded(zero.float(), rows, columns, block)
    return values * _expanded(_exponents(scale), rows, columns, block)


def _exponents(scale: Tensor) -> Tensor:
    """Return scales [...] in float32; bytes are exponents of two."""
    if scale.dtype == torch.uint8:
        return torch.exp2(scale.float() - EXPONENT_BIAS)
    return scale.float()


def fits(shape: Sequence[int], scale: Sequence[int], block: Sequence[int] | None) -> bool:
    """Return True if scales of this shape cover a matrix of this shape; see `scaled`."""
    counts = (math.prod(scale), 1) if len(scale) < 2 else scale
    return len(counts) == 2 and all(
        count > 0
        and (size % count == 0 or (block is not None and count == -(-size // block[axis])))
        for axis, (size, count) in enumerate(zip(shape, counts, strict=True))
    )


def _expanded(scale: Tensor, rows: int, columns: int, block: Sequence[int] | None) -> Tensor:
    """Repeat scales of blocks to [rows, columns], or to a shape that broadcasts to it."""
    if scale.dim() < 2:
        scale = scale.reshape(-1, 1)  # a scale per matrix or per row
    for axis, size in enumerate((rows, columns)):
        count = scale.shape[axis]
        if count not in (1, size):
            is_block = block is not None and count == -(-size // block[axis])
            repeats = block[axis] if block is not None and is_block else size // count
            scale = scale.repeat_interleave(repeats, axis).narrow(axis, 0, size)
    return scale


def _unpacked(packed: Tensor, bits: int, axis: int) -> Tensor:
    """Return the unsigned codes of 32-bit integers, lowest bits first, along an axis of [r, c]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    shape = (1, -1, 1) if axis == 0 else (1, 1, -1)
    codes: Tensor = (packed.unsqueeze(axis + 1) >> shifts.view(shape)) & (2**bits - 1)
    return codes.flatten(axis, axis + 1)


def compressed_integers(parts: Parts, columns: int, bits: int) -> Tensor:
    """Return a matrix [out, in] of compressed-tensors' format "pack-quantized".

    Codes and zero points are stored with an offset of 2 ** (bits - 1).
    """
    scale, index = parts[".weight_scale"].float(), parts.get(".weight_g_idx")
    codes = _unpacked(parts[".weight_packed"], bits, 1)[:, :columns]
    rows = len(codes)
    zero = parts.get(".weight_zero_point")
    offsets = torch.full_like(scale, 2 ** (bits - 1))
    if zero is not None:
        offsets = _unpacked(zero, bits, 0)[:rows].float()
    if index is not None and bool((index >= 0).all()):
        groups = index.long()
        return (codes.float() - offsets[:, groups]) * scale[:, groups]
    return scaled(codes, scale, offsets, None)


def _fp4(packed: Tensor) -> Tensor:
    """Return the FP4 numbers [..., 2 n] in bytes [..., n], lower half first."""
    table = torch.tensor((*FP4, *(-number for number in FP4)))
    halves = torch.stack((packed & 15, packed >> 4), dim=-1)
    return table[halves.flatten(-2).int()]


def compressed_fp4(parts: Parts) -> Tensor:
    """Return a matrix [out, in] of compressed-tensors' FP4 formats (NVFP4 and MXFP4)."""
    scale = _exponents(parts[".weight_scale"])
    if (common := parts.get(".weight_global_scale")) is not None:
        scale = scale / common.float()
    return scaled(_fp4(parts[".weight_packed"]), scale, None, None)


def mxfp4_experts(parts: Parts) -> Tensor:
    """Return matrices of experts [experts, in, out] from blocks [experts, out, groups, bytes]."""
    numbers = _fp4(parts["_blocks"]) * _exponents(parts["_scales"]).unsqueeze(-1)
    return numbers.flatten(2).transpose(1, 2).contiguous()


def gptq(parts: Parts, bits: int, offset: int) -> Tensor:
    """Return a matrix [out, in] of GPTQ. offset: is added to the stored zero points."""
    codes = _unpacked(parts[".qweight"], bits, 0)  # [in, out]
    scales = parts[".scales"].float()  # [groups, out]
    zeros = (_unpacked(parts[".qzeros"], bits, 1) + offset) & (2**bits - 1)
    _check_groups(scales, zeros)
    index = parts.get(".g_idx")
    groups = (
        torch.arange(len(codes)) // -(-len(codes) // len(scales)) if index is None else index.long()
    )
    matrix: Tensor = scales[groups] * (codes - zeros[groups])  # [in, out]
    return matrix.T.contiguous()


def _check_groups(scales: Tensor, zeros: Tensor) -> None:
    """Raise ValueError unless each group of inputs has scales and zero points."""
    if scales.shape != zeros.shape:
        raise ValueError(
            f"scales have the shape {list(scales.shape)}, zero points {list(zeros.shape)}"
        )


def awq(parts: Parts) -> Tensor:
    """Return a matrix [out, in] of AWQ in the layout "gemm"."""
    scales = parts[".scales"].float()  # [groups, out]
    codes, zeros = (
        _unpacked(parts[name], AWQ_BITS, 1).unflatten(1, (-1, 8))[..., AWQ_ORDER].flatten(1)
        for name in (".qweight", ".qzeros")
    )
    _check_groups(scales, zeros)
    group = len(codes) // len(scales)
    groups = torch.arange(len(codes)) // group
    matrix: Tensor = (codes - zeros[groups]) * scales[groups]  # [in, out]
    return matrix.T.contiguous()


def bitsandbytes_4bit(parts: Parts, state: Mapping[str, Any]) -> Tensor:
    """Return a matrix of bitsandbytes in NF4 or FP4, float32 [out, in].

    state: its shape and the sizes of blocks. With double quantization the maxima of the blocks are
    codes, too.
    """
    packed = parts[".weight"].flatten()
    codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten().int()
    maxima = parts[".weight.absmax"]
    if (nested := parts.get(".weight.nested_absmax")) is not None:
        steps = parts[".weight.nested_quant_map"].float()[maxima.int()]
        blocks = nested.float().repeat_interleave(state["nested_blocksize"])[: len(steps)]
        maxima = steps * blocks + state["nested_offset"]
    count = torch.Size(state["shape"]).numel()
    sizes = maxima.float().repeat_interleave(state["blocksize"])[:count]
    return (parts[".weight.quant_map"].float()[codes[:count]] * sizes).view(state["shape"])


def bitsandbytes_8bit(parts: Parts) -> Tensor:
    """Return a matrix [out, in] of LLM.int8()."""
    return parts[".weight"].float() * (parts[".SCB"].float() / INT8_MAX).unsqueeze(1)
