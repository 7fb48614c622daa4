"""Quantized models in published formats: dequantized on loading, or refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import family_folder

import lrcore
from lrcore.models import codes
from lrcore.models.layers import read_layer
from lrcore.models.quantized import quantization_of, unquantized_name
from lrcore.models.weights import read_json
from lrcore.system.errors import InputError

GROUP = 16
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def packed(values, bits, order=None):
    """Pack unsigned integers [r, c] into 32 bits along the columns, in an order of positions."""
    per = 32 // bits
    order = range(per) if order is None else order
    result = torch.zeros(len(values), -(-values.shape[1] // per), dtype=torch.int64)
    for column in range(values.shape[1]):
        position = list(order).index(column % per)
        result[:, column // per] |= values[:, column].long() << (bits * position)
    return torch.where(result >= 2**31, result - 2**32, result).int()


def grouped(weight, bits):
    """Return unsigned codes [out, in], and zero points and scales [out, groups]."""
    blocks = weight.unflatten(1, (-1, GROUP))
    low, high = blocks.amin(-1), blocks.amax(-1)
    scales = ((high - low) / (2**bits - 1)).half().float()
    zeros = (-low / scales).round().clamp(0, 2**bits - 1)
    values = (blocks / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, 2**bits - 1)
    expected = ((values - zeros.unsqueeze(-1)) * scales.unsqueeze(-1)).flatten(1)
    return values.flatten(1).int(), zeros.int(), scales, expected


def gptq(stem, weight, offset=1, bits=4):
    values, zeros, scales, expected = grouped(weight, bits)
    order = torch.randperm(weight.shape[1])  # the columns of a group need not be neighbors
    return {
        f"{stem}.qweight": packed(values[:, order], bits).T.contiguous(),
        f"{stem}.qzeros": packed((zeros.T - offset) % 2**bits, bits),
        f"{stem}.scales": scales.T.half().contiguous(),
        f"{stem}.g_idx": (order // GROUP).int(),
    }, expected[:, order]


def awq(stem, weight):
    values, zeros, scales, expected = grouped(weight, 4)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{stem}.qweight": packed(values.T, 4, order),
        f"{stem}.qzeros": packed(zeros.T, 4, order),
        f"{stem}.scales": scales.T.half().contiguous(),
    }, expected


def compressed_4bit(stem, weight):
    values, zeros, scales, expected = grouped(weight, 4)
    return {
        f"{stem}.weight_packed": packed(values, 4),
        f"{stem}.weight_scale": scales,
        f"{stem}.weight_zero_point": packed(zeros.T, 4).T.contiguous(),
        f"{stem}.weight_shape": torch.tensor(weight.shape),
    }, expected


def scaled(stem, weight, dtype, largest, suffix="weight_scale", axes=(1,)):
    scale = weight.abs().amax(axes, keepdim=True) / largest
    values = weight / scale
    values = (values.round() if dtype == torch.int8 else values).to(dtype)
    input_scale = {f"{stem}.input_scale": torch.ones(1)}
    return {
        f"{stem}.weight": values,
        f"{stem}.{suffix}": scale,
    } | input_scale, values.float() * scale


def float8(stem, weight):
    return scaled(stem, weight, torch.float8_e4m3fn, 448)


def float8_matrix(stem, weight):
    return scaled(stem, weight, torch.float8_e4m3fn, 448, "weight_scale_inv", (0, 1))


def int8(stem, weight):
    return scaled(stem, weight, torch.int8, 127)


def blocks(stem, weight, side=20):
    """Quantize square blocks; the last blocks of a row and a column are smaller."""
    rows, columns = weight.shape
    larger = torch.zeros(-(-rows // side) * side, -(-columns // side) * side)
    larger[:rows, :columns] = weight
    scale = larger.unflatten(0, (-1, side)).unflatten(2, (-1, side)).abs().amax((1, 3)) / 448
    scales = scale.repeat_interleave(side, 0).repeat_interleave(side, 1)[:rows, :columns]
    values = (weight / scales).to(torch.float8_e4m3fn)
    stored = {f"{stem}.weight": values, f"{stem}.weight_scale_inv": scale}
    return stored, values.float() * scales


def bytes_of_4bit(values):
    flat = values.flatten().to(torch.uint8)
    return flat[::2], flat[1::2]


def nvfp4(stem, weight):
    common = torch.tensor([100.0])
    scales = weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / 6 * common
    scales = scales.to(torch.float8_e4m3fn)
    table = torch.tensor((*codes.FP4, *(-number for number in codes.FP4)))
    sizes = (scales.float() / common).repeat_interleave(GROUP, 1)
    values = ((weight / sizes).unsqueeze(-1) - table).abs().argmin(-1)
    low, high = bytes_of_4bit(values)
    return {
        f"{stem}.weight_packed": (low | high << 4).view(len(weight), -1),
        f"{stem}.weight_scale": scales,
        f"{stem}.weight_global_scale": common,
    }, table[values] * sizes


def normal_float(stem, weight, is_nested=True):
    """Quantize to NF4 with a table of 16 values; `is_nested` also stores block maxima as codes."""
    table, size = torch.linspace(-1, 1, 16), 64
    maxima = weight.flatten().unflatten(0, (-1, size)).abs().amax(-1)
    state = {"quant_type": "nf4", "blocksize": size, "shape": list(weight.shape)}
    stored = {f"{stem}.weight.quant_map": table}
    if is_nested:
        map_of_maxima, offset = torch.linspace(-1, 1, 256), maxima.mean()
        largest = (maxima - offset).abs().max().reshape(1)
        steps = ((maxima - offset) / largest + 1) / 2 * 255
        stored[f"{stem}.weight.absmax"] = steps.round().to(torch.uint8)
        stored[f"{stem}.weight.nested_absmax"] = largest
        stored[f"{stem}.weight.nested_quant_map"] = map_of_maxima
        state |= {"nested_blocksize": 256, "nested_offset": float(offset)}
        maxima = map_of_maxima[steps.round().int()] * largest + float(offset)
    else:
        stored[f"{stem}.weight.absmax"] = maxima
    sizes = maxima.repeat_interleave(size).view(weight.shape)
    values = ((weight / sizes).unsqueeze(-1) - table).abs().argmin(-1)
    first, second = bytes_of_4bit(values)
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return stored | {
        f"{stem}.weight": (first << 4 | second).unsqueeze(1),
        f"{stem}.weight.quant_state.bitsandbytes__nf4": text,
    }, table[values] * sizes


def plain_normal_float(stem, weight):
    return normal_float(stem, weight, is_nested=False)


def llm_int8(stem, weight):
    maxima = weight.abs().amax(1)
    values = (weight * 127 / maxima.unsqueeze(1)).round().to(torch.int8)
    return {
        f"{stem}.weight": values,
        f"{stem}.SCB": maxima,
        f"{stem}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }, values.float() * (maxima / 127).unsqueeze(1)


def gptq_8bit(stem, weight):
    return gptq(stem, weight, bits=8)


def gptq_second_version(stem, weight):
    return gptq(stem, weight, offset=0)


def gptq_2bit(stem, weight):
    return gptq(stem, weight, bits=2)


def gptq_in_order(stem, weight):
    """Quantize groups of neighboring columns, whose indices are not stored."""
    values, zeros, scales, expected = grouped(weight, 4)
    return {
        f"{stem}.qweight": packed(values, 4).T.contiguous(),
        f"{stem}.qzeros": packed((zeros.T - 1) % 16, 4),
        f"{stem}.scales": scales.T.half().contiguous(),
    }, expected


def float4(stem, weight):
    """Quantize to FP4 of bitsandbytes, whose state differs from NF4 in name and table only."""
    stored, expected = normal_float(stem, weight, is_nested=False)
    state = f"{stem}.weight.quant_state.bitsandbytes__"
    text = bytes(stored.pop(f"{state}nf4").tolist()).replace(b"nf4", b"fp4")
    return stored | {f"{state}fp4": torch.tensor(list(text), dtype=torch.uint8)}, expected


def exponents(weight, largest):
    """Return E8M0 scales [out, groups] as bytes, and their values [out, in]."""
    sizes = weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / largest
    powers = sizes.log2().ceil()
    return (powers + 127).to(torch.uint8), torch.exp2(powers).repeat_interleave(GROUP, 1)


def mxfp4(stem, weight):
    scales, sizes = exponents(weight, 6)
    table = torch.tensor((*codes.FP4, *(-number for number in codes.FP4)))
    values = ((weight / sizes).unsqueeze(-1) - table).abs().argmin(-1)
    low, high = bytes_of_4bit(values)
    return {
        f"{stem}.weight_packed": (low | high << 4).view(len(weight), -1),
        f"{stem}.weight_scale": scales,
    }, table[values] * sizes


def mxfp8(stem, weight):
    scales, sizes = exponents(weight, 448)
    values = (weight / sizes).to(torch.float8_e4m3fn)
    return {f"{stem}.weight": values, f"{stem}.weight_scale": scales}, values.float() * sizes


def compressed(layout, bits, **weights):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits} | weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}


KINDS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4}, 4),
    "gptq 8 bits": (gptq_8bit, {"quant_method": "gptq", "bits": 8}, 8),
    "gptq v2": (
        gptq_second_version,
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        4,
    ),
    "gptq 2 bits": (gptq_2bit, {"quant_method": "gptq", "bits": 2}, 2),
    "gptq in order": (gptq_in_order, {"quant_method": "gptq", "bits": 4, "desc_act": False}, 4),
    "awq, default layout": (awq, {"quant_method": "awq"}, 4),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}, 4),
    "packed integers": (compressed_4bit, compressed("pack-quantized", 4), 4),
    "float8": (float8, compressed("float-quantized", 8), 8),
    "int8": (int8, compressed("int-quantized", 8), 8),
    "nvfp4": (nvfp4, compressed("nvfp4-pack-quantized", 4), 4),
    "mxfp4": (mxfp4, compressed("mxfp4-pack-quantized", 4), 4),
    "mxfp8": (mxfp8, {"quant_method": "mxfp8"}, 8),
    "mxfp8, compressed-tensors": (mxfp8, compressed("mxfp8-quantized", 8), 8),
    "fbgemm": (float8, {"quant_method": "fbgemm_fp8"}, 8),
    "float8 blocks": (blocks, {"quant_method": "fp8", "weight_block_size": [20, 20]}, 8),
    "float8 matrices": (float8_matrix, {"quant_method": "fp8"}, 8),
    "nf4": (normal_float, {"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
    "nf4, plain maxima": (plain_normal_float, {"load_in_4bit": True}, 4),
    "fp4": (float4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
    "llm.int8": (llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
}


@pytest.fixture
def quantized(tiny_llama, tmp_path):
    """Return a function that quantizes a layer and returns the folder and the expected matrices."""

    def write(pack, description):
        folder = shutil.copytree(tiny_llama, tmp_path / "model")
        stored, expected = {}, {}
        for name, tensor in load_file(folder / "model.safetensors").items():
            if "layers.1." in name and name.endswith("_proj.weight"):
                codes_of, expected[name] = pack(name.removesuffix(".weight"), tensor)
                stored |= codes_of
            else:
                stored[name] = tensor
        write_weights(folder, stored)
        write_config(folder, quantization_config=description)
        return folder, expected

    return write


def write_weights(folder, tensors):
    file = folder / "model.safetensors"
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, file, metadata={"format": "pt"})


def write_config(folder, **fields):
    file = folder / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(values | fields), encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_dequantized_loaded_and_offloaded(kind, quantized, tmp_path):
    pack, description, bits = KINDS[kind]
    folder, expected = quantized(pack, description)
    model = lrcore.load(str(folder))
    assert model.dtype == "float32"
    state = model.network.state_dict()
    for name, matrix in expected.items():
        torch.testing.assert_close(state[name], matrix, rtol=1e-6, atol=1e-7)
    assert model.note == f"Dequantized from {bits} bits ({quantization_of_folder(folder)})"
    offloaded = lrcore.load(str(folder), offload=True)
    tokens = torch.arange(3, 40).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(offloaded.network(tokens).logits, model.network(tokens).logits)
    assert offloaded.note == model.note
    saved = lrcore.save(offloaded, tmp_path / "saved")
    assert lrcore.load(str(saved)).note == model.note
    assert "quantization_config" not in read_json(saved / "config.json")
    exported = lrcore.export(model, tmp_path / "exported", standard=True)
    assert "quantization_config" not in read_json(exported / "config.json")
    assert f"Note: {model.note}." in (exported / "README.md").read_text(encoding="utf-8")


PARTS = {"mlp.c_fc.weight": "up", "mlp.c_proj.weight": "down", "attn.c_proj.weight": "o"}


@pytest.mark.parametrize("kind", ["gptq", "llm.int8"])
def test_matrices_of_conv1d_are_stored_transposed(kind, tiny_llama, tmp_path):
    folder = family_folder("gpt2", tiny_llama, tmp_path / "gpt2")
    pack, description, _ = KINDS[kind]
    stored, expected = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        part = PARTS.get(name.partition(".h.1.")[2])
        if part is None:
            stored[name] = tensor
        else:
            codes_of, expected[part] = pack(name.removesuffix(".weight"), tensor.T)
            stored |= codes_of
    write_weights(folder, stored)
    write_config(folder, quantization_config=description)
    for offload in (False, True):
        matrices = read_layer(lrcore.load(str(folder), offload=offload).network, 1).matrices()
        for part, matrix in expected.items():
            torch.testing.assert_close(matrices[part].weight, matrix, rtol=1e-6, atol=1e-7)


def quantization_of_folder(folder):
    return quantization_of(read_json(folder / "config.json"))["quant_method"]


@pytest.mark.parametrize("offload", [False, True])
def test_quantized_model_is_compressed_in_its_dtype(offload, quantized, story_file, tmp_path):
    folder, _ = quantized(*KINDS["float8"][:2])
    model = lrcore.load(str(folder), dtype="bfloat16", offload=offload)
    assert model.dtype == "bfloat16"
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=16, method="svd", ratio=0.2)
    small = lrcore.compress(model, recipe)
    assert lrcore.load(str(lrcore.save(small, tmp_path / "small"))).note == model.note


def test_dtype_auto_is_the_dtype_of_the_config(quantized):
    folder, _ = quantized(*KINDS["gptq"][:2])
    write_config(folder, dtype="bfloat16")
    for offload in (False, True):
        assert lrcore.load(str(folder), dtype="auto", offload=offload).dtype == "bfloat16"


def test_generation_config_is_read(quantized):
    folder, _ = quantized(*KINDS["awq"][:2])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    assert lrcore.load(str(folder)).network.generation_config.eos_token_id == [1, 7]


def test_float8_weights_without_a_quantization_config_are_read(tiny_llama, tmp_path):
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    state = load_file(folder / "model.safetensors")
    state[Q_PROJ] = state[Q_PROJ].to(torch.float8_e4m3fn)
    write_weights(folder, state)
    for offload in (False, True):
        model = lrcore.load(str(folder), offload=offload)
        assert model.note == ""
        query = read_layer(model.network, 1).matrices()["q"].weight
        assert torch.equal(query, state[Q_PROJ].float())


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    {
        "no scale": (lambda state: state.pop(f"{Q_PROJ}_scale_inv"), "without scales that fit"),
        "another shape": (
            lambda state: state.update({f"{Q_PROJ}_scale_inv": torch.ones(5, 5)}),
            "without scales that fit",
        ),
    }.values(),
)
def test_codes_without_scales_raise(change, words, offload, quantized):
    folder, _ = quantized(*KINDS["float8 blocks"][:2])
    state = load_file(folder / "model.safetensors")
    change(state)
    write_weights(folder, state)
    with pytest.raises(InputError, match=f"q_proj.*{words}"):
        lrcore.load(str(folder), offload=offload)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("gptq", "qzeros"),
        ("gptq", "g_idx"),
        ("awq", "scales"),
        ("packed integers", "weight_zero_point"),
        ("nvfp4", "weight_scale"),
        ("nf4", "weight.absmax"),
        ("llm.int8", "SCB"),
    ],
)
def test_damaged_tensors_raise(kind, part, offload, quantized):
    folder, _ = quantized(*KINDS[kind][:2])
    state = load_file(folder / "model.safetensors")
    name = Q_PROJ.removesuffix("weight") + part
    state[name] = state[name][:-1]
    write_weights(folder, state)
    with pytest.raises(InputError, match=r"q_proj\.weight.*cannot be dequantized") as caught:
        lrcore.load(str(folder), offload=offload)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("kind", ["float8 blocks", "int8", "gptq", "nf4"])
def test_missing_quantization_config_raises(kind, offload, quantized):
    folder, _ = quantized(*KINDS[kind][:2])
    write_config(folder, quantization_config=None)
    with pytest.raises(InputError, match="quantized"):
        lrcore.load(str(folder), offload=offload)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(
    "description",
    [
        {"quant_method": "hqq"},
        {"quant_method": "torchao"},
        {"quant_method": "modelopt"},
        {"quant_method": "quanto"},
        {"quant_method": "eetq"},
        {"quant_method": "aqlm"},
        {"quant_method": "bitnet"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        compressed("pack-quantized", 3),
        compressed("marlin-24", 4),
        compressed("float-quantized", 8) | {"sparsity_config": {"format": "sparse-24-bitmask"}},
    ],
)
def test_other_formats_raise_and_name_the_unquantized_model(
    description, offload, tiny_llama, tmp_path
):
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    write_config(folder, quantization_config=description)
    with pytest.raises(InputError, match=f"{description['quant_method']}.*unquantized model\\.$"):
        lrcore.load(str(folder), offload=offload)
    write_config(folder, _name_or_path="maker/Dense-7B")
    with pytest.raises(InputError, match=r"unquantized model maker/Dense-7B\.$"):
        lrcore.load(str(folder), offload=offload)


@pytest.mark.parametrize("description", [5, {"bits": 4}])
def test_quantization_config_without_a_method_raises(description, tiny_llama, tmp_path):
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    write_config(folder, quantization_config=description)
    with pytest.raises(InputError, match="quantized by"):
        lrcore.load(str(folder))


@pytest.mark.parametrize(
    ("values", "card", "name"),
    [
        ({"_name_or_path": "maker/Dense-7B"}, "", "maker/Dense-7B"),
        ({"_name_or_path": "/home/maker/dense"}, "", ""),
        ({"_name_or_path": "maker/Dense-7B-GPTQ"}, "base_model: maker/Dense-7B", "maker/Dense-7B"),
        ({}, "base_model:\n- maker/Dense-7B", "maker/Dense-7B"),
        ({}, "base_model: {", ""),
        ({}, "license: mit", ""),
    ],
)
def test_unquantized_model_is_named_by_config_or_card(values, card, name, tmp_path):
    (tmp_path / "README.md").write_text(f"---\n{card}\n---\n# A model\n", encoding="utf-8")
    assert unquantized_name(values, tmp_path) == name
