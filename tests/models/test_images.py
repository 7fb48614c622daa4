"""Multimodal models, calibrated and evaluated with images, with patches as tokens."""

import base64
import copy
import io
import json
import math
import re
import struct
import zlib

import pictured_models
import pytest
import torch
from PIL import Image
from tiny_models import copy_tokenizer

import lrcore
from lrcore.data import load_texts
from lrcore.evaluation.evaluate import window_losses
from lrcore.evaluation.tasks import continuations, few_shot_items
from lrcore.layers.image_tokens import (
    IGNORED,
    first_id,
    highest_token,
    is_patch,
    patches_of,
    targets,
)
from lrcore.models.architectures import decoder_layers
from lrcore.models.images import load_images, read_processor, text_encoder
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.stream import LayerStream
from lrcore.runs.cluster import pool
from lrcore.system.units import worked_by

MARKER = re.compile("<image:([0-9a-f]{16})>")
TEXTS = ("svd_llm", "a3", "modegpt", "latentllm", "fused")


def png_of(width: int, height: int) -> bytes:
    """Return a file of a few bytes with a header for a large number of black pixels."""
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


HUGE = base64.b64encode(png_of(9_000, 9_000)).decode()


@pytest.fixture(scope="module")
def multimodal_folder(tiny_llama, tmp_path_factory):
    folders = {}

    def folder(kind="llava"):
        if kind not in folders:
            path = tmp_path_factory.mktemp(kind)
            folders[kind] = str(pictured_models.make(kind, tiny_llama, path))
        return folders[kind]

    return folder


def processor_output(model, text, images):
    """Return the output of the model's processor for a text with at most one image."""
    keys = MARKER.findall(text)
    image = Image.open(io.BytesIO(images[keys[0]])).convert("RGB") if keys else None
    processed = read_processor(model)(
        text=MARKER.sub(pictured_models.MARKUP[model.network.config.model_type], text),
        images=image,
        return_tensors="pt",
        add_special_tokens=False,
    )
    return _as_dtype(processed, model.network.dtype)


def _as_dtype(processed, dtype):
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in processed.items()
    }


@pytest.mark.parametrize("kind", pictured_models.KINDS)
def test_patches_as_tokens_give_the_logits_of_the_image(kind, multimodal_folder):
    model, texts = lrcore.load(multimodal_folder(kind), dtype="float64"), load_texts("shapes")
    encode = text_encoder(model, texts.images)
    for text in [element for element in texts.documents if MARKER.search(element)][:3]:
        tokens = torch.tensor([encode(text).input_ids])
        load_images(encode, tokens)
        processed = processor_output(model, text, texts.images)
        assert tokens.shape == processed["input_ids"].shape
        assert is_patch(tokens).sum() >= 4
        with torch.inference_mode():
            ours, theirs = model.network(input_ids=tokens), model.network(**processed)
        assert torch.equal(ours.logits, theirs.logits)


def photo(width, height):
    """Return a PNG file with random pixels."""
    pixels = torch.randint(
        0, 256, (height, width, 3), generator=torch.Generator().manual_seed(width)
    )
    file = io.BytesIO()
    Image.fromarray(pixels.byte().numpy()).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("kind", pictured_models.KINDS)
def test_layers_run_one_by_one_have_the_states_of_transformers(kind, multimodal_folder):
    """Rotary positions and terms between layers are those of the images of each window."""
    model = lrcore.load(multimodal_folder(kind), dtype="float64")
    images = {"a" * 16: photo(48, 24), "b" * 16: photo(32, 40)}
    text = "Once <image:{}> there <image:{}> was a fox."
    texts = [text.format(*keys) for keys in (images, reversed(images))]
    encode, processor = text_encoder(model, images), read_processor(model)
    tokens = torch.tensor([encode(element).input_ids for element in texts])
    load_images(encode, tokens)
    network = clone(model.network)
    for index in range(len(decoder_layers(network))):
        write_layer(network, read_layer(network, index))
    stream = LayerStream(network, tokens, batch=1)
    for index in range(len(decoder_layers(network))):
        stream.run(index)
    outputs = []
    decoder_layers(model.network)[-1].register_forward_hook(lambda *call: outputs.append(call[2]))
    for number, element in enumerate(texts):
        pictures = [
            Image.open(io.BytesIO(images[key])).convert("RGB") for key in MARKER.findall(element)
        ]
        processed = processor(
            text=MARKER.sub(pictured_models.MARKUP[kind], element),
            images=pictures,
            return_tensors="pt",
            add_special_tokens=False,
        )
        with torch.inference_mode():
            expected = model.network(**_as_dtype(processed, torch.float64)).logits
            logits = network(input_ids=tokens[number : number + 1]).logits
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(stream.hidden[number], outputs[number], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl_moe", "internvl", "gemma3", "gemma4"])
def test_model_calibrated_with_images_reloads_and_answers(kind, multimodal_folder, tmp_path):
    """Generated text does not depend on the images that the model has read."""
    model = lrcore.load(multimodal_folder(kind))
    written = lrcore.generate(model, "Once upon", max_new_tokens=6)
    for method, options in (("svd_llm", {}), ("fused", {"refit": "auto"})):
        recipe = recipe_of(model.name, "shapes", method=method, **options)
        assert is_patch(lrcore.calibrate(model, recipe).tokens).any()
        small = lrcore.compress(model, recipe)
        result = lrcore.score_choices(small, "shapes", items=6)
        assert result.nonfinite == 0
        back = lrcore.load(lrcore.save(small, tmp_path / method))
        assert lrcore.score_choices(back, "shapes", items=6) == result
        assert lrcore.generate(back, "Once upon") == lrcore.generate(small, "Once upon")
    assert lrcore.generate(model, "Once upon", max_new_tokens=6) == written


def test_a_window_that_begins_inside_an_image_continues_its_positions(multimodal_folder):
    model = lrcore.load(multimodal_folder("qwen2_vl"))
    key = "c" * 16
    encode = text_encoder(model, {key: photo(48, 24)})  # 3 x 2 patches
    tokens = torch.tensor([encode(f"<image:{key}> x").input_ids])
    load_images(encode, tokens)
    cut = encode.patches.positions(tokens[:, 2:])[:, 0]
    # time, row and column of five patches; the words after the image follow column 2
    assert cut[:, :6].tolist() == [[0, 0, 0, 0, 0, 3], [0, 0, 1, 1, 1, 3], [1, 2, 0, 1, 2, 3]]


def test_text_without_images_has_the_same_logits_after_loading_images(multimodal_folder):
    model, texts = lrcore.load(multimodal_folder()), load_texts("shapes")
    tokens = torch.arange(3, 43).view(2, 20)
    names = list(model.network.state_dict())
    with torch.inference_mode():
        before = model.network(input_ids=tokens).logits
    load_images(
        encoder := text_encoder(model, texts.images),
        torch.tensor(encoder(texts.joined()).input_ids),
    )
    with torch.inference_mode():
        assert torch.equal(model.network(input_ids=tokens).logits, before)
    assert list(model.network.state_dict()) == names


def test_copied_modules_know_images_loaded_later(multimodal_folder):
    model, texts = lrcore.load(multimodal_folder()), load_texts("shapes")
    encode, two = text_encoder(model, texts.images), list(texts.images)[:2]
    ids = [torch.tensor([encode(f"<image:{key}> is").input_ids]) for key in two]
    load_images(encode, ids[0])
    copied = copy.deepcopy(model.network)
    load_images(encode, ids[1])
    with torch.inference_mode():
        for element in ids:
            actual, expected = (net(input_ids=element).logits for net in (model.network, copied))
            assert torch.equal(actual, expected)


def test_patches_are_not_targets():
    tokens = torch.tensor([[5, first_id("f" * 16), first_id("f" * 16) + 1, 7, 9]])
    assert targets(tokens).tolist() == [[IGNORED, IGNORED, 7, 9]]
    assert highest_token(tokens) == 9


def recipe_of(model, data, **options):
    processed = {"samples": 6, "seq_len": 48, "ratio": 0.3, "sampling": "first"} | options
    return lrcore.Recipe(model=model, data=data, **processed)


def test_calibration_windows_contain_the_images(multimodal_folder):
    """Layer inputs equal those of a forward pass with images in transformers."""
    model = lrcore.load(multimodal_folder(), dtype="float64")
    calibrated = lrcore.calibrate(model, recipe_of(model.name, "shapes", dtype="float64"))
    assert is_patch(calibrated.tokens).any()
    assert is_patch(calibrated.unseen_tokens).any()
    texts = load_texts("shapes")
    (first, *_), length = texts.documents, 0
    processed, inputs = processor_output(model, first, texts.images), []
    layer = model.network.model.language_model.layers[0]
    handle = layer.self_attn.q_proj.register_forward_pre_hook(lambda _m, a: inputs.append(a[0][0]))
    with torch.inference_mode():
        model.network(**processed)
        length = len(inputs[0])
        model.network(input_ids=calibrated.tokens[:1, :length])
    handle.remove()
    assert MARKER.search(first)
    assert torch.equal(*inputs)


@pytest.mark.parametrize("method", TEXTS)
def test_method_compresses_and_answers_with_images(method, multimodal_folder, tmp_path):
    model = lrcore.load(multimodal_folder())
    options = {"refit": "auto"} if method == "fused" else {}
    small = lrcore.compress(model, recipe_of(model.name, "shapes", method=method, **options))
    result = lrcore.score_choices(small, "shapes", items=12)
    assert result.nonfinite == 0
    back = lrcore.load(lrcore.save(small, tmp_path / "small"))
    assert lrcore.score_choices(back, "shapes", items=12) == result


@pytest.mark.parametrize("policy", ["probed", "fisher", "sensitivity"])
def test_policy_measures_on_images(policy, multimodal_folder):
    model = lrcore.load(multimodal_folder())
    recipe = recipe_of(model.name, "shapes", method="svd_llm", policy=policy)
    plan = lrcore.allocate(lrcore.prepare(model, recipe), recipe)
    assert len(set(plan.ranks.values())) > 1


def test_scores_equal_those_of_transformers(multimodal_folder):
    model = lrcore.load(multimodal_folder(), dtype="float64")
    chosen = few_shot_items(model, "shapes", 6, 0)
    assert sum("images" in item for item in chosen) in range(2, 6)
    right = []
    for item in chosen:
        scores = []
        for context, choice in continuations(item):
            processed = processor_output(model, context + choice, item.get("images", {}))
            begin = processor_output(model, context, item.get("images", {}))["input_ids"].shape[1]
            with torch.inference_mode():
                losses = model.network(**processed).logits.log_softmax(-1)
            actual = processed["input_ids"][0]
            scores.append(
                sum(float(losses[0, at - 1, actual[at]]) for at in range(begin, len(actual)))
            )
        right.append(max(range(len(scores)), key=scores.__getitem__) == item["label"])
    result = lrcore.score_choices(model, "shapes", items=6)
    assert result.accuracy == pytest.approx(sum(right) / 6)
    for name, share in result.groups.items():
        actual = [
            element for element, item in zip(right, chosen, strict=True) if name in item["groups"]
        ]
        assert share.items == len(actual)
        assert share.accuracy == pytest.approx(sum(actual) / len(actual))
    assert {"IMG", "TXT"} <= result.groups.keys()


def test_images_of_a_task_are_removed_and_calibration_images_stay(multimodal_folder):
    model = lrcore.load(multimodal_folder())
    windows = lrcore.calibrate(model, recipe_of(model.name, "shapes")).tokens
    with torch.inference_mode():
        before = model.network(input_ids=windows).logits
    patches, texts = patches_of(model.network.get_input_embeddings()), load_texts("shapes/test")
    lrcore.score_choices(model, "shapes", items=12)
    assert not any(first_id(key) in patches for key in texts.images)
    with torch.inference_mode():
        assert torch.equal(model.network(input_ids=windows).logits, before)


def test_few_shot_examples_keep_their_images(multimodal_folder):
    result = lrcore.score_choices(lrcore.load(multimodal_folder()), "shapes", items=4, shots=2)
    assert result.protocol["shots"] == 2
    assert result.nonfinite == 0


def test_questions_and_images_are_read_from_a_file(multimodal_folder, tmp_path):
    """Images are separate files or inside the data file, which also works as calibration text."""
    from lrcore.data import shapes

    lines = []
    for number, item in enumerate(shapes.items("test", 12)):
        image = item.pop("image", None)
        if image is not None and number % 2:
            (tmp_path / f"{number}.png").write_bytes(image)
            item["image"] = f"{number}.png"
        elif image is not None:
            item["image"] = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        lines.append(json.dumps(item))
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(lines))
    model = lrcore.load(multimodal_folder())
    actual, built_in = (
        lrcore.score_choices(model, str(element), items=12) for element in (file, "shapes")
    )
    assert (actual.accuracy, actual.groups) == (built_in.accuracy, built_in.groups)
    windows = lrcore.calibrate(model, recipe_of(model.name, str(file), samples=2)).tokens
    assert is_patch(windows).any()


def test_losses_of_patches_are_zero(multimodal_folder):
    model, texts = lrcore.load(multimodal_folder()), load_texts("shapes")
    encode = text_encoder(model, texts.images)
    text = next(element for element in texts.documents if MARKER.search(element))
    tokens = torch.tensor([encode(text).input_ids])
    load_images(encode, tokens)
    losses = window_losses(model, tokens)[0]
    assert (losses[is_patch(tokens[0, 1:])] == 0).all()
    assert (losses[~is_patch(tokens[0, 1:])] > 0).all()


def test_sweep_has_a_row_for_every_group_of_questions(multimodal_folder, tmp_path):
    values = {
        "model": multimodal_folder(),
        "data": "shapes",
        "samples": 2,
        "seq_len": 48,
        "method": "a3",
    }
    sweep = lrcore.Sweep.from_dict(
        values | {"tasks": [{"task": "shapes", "items": 9}], "evaluation": [], "ratios": [0.3]}
    )
    rows = lrcore.run_sweep(lrcore.load(multimodal_folder()), sweep, tmp_path)
    small = [row for row in rows if row.ratio == 0.3]
    assert [row.error for row in small] == [None] * len(small)
    named = {row.measured_on: row.accuracy for row in small}
    assert named.keys() == {
        "task shapes",
        *(f"task shapes, {group}" for group in ("colour", "shape", "place", "IMG", "TXT")),
    }


def test_displayed_window_marks_its_images(multimodal_folder):
    model = lrcore.load(multimodal_folder())
    text_shown = lrcore.calibrate(model, recipe_of(model.name, "shapes")).text(model.tokenizer)
    assert text_shown.startswith("[image]")
    assert "Question" in text_shown


# --- errors ---


def test_text_models_raise_for_images(tiny_llama):
    model = lrcore.load(str(tiny_llama))
    with pytest.raises(lrcore.InputError, match="is a llama model, which reads no images"):
        lrcore.calibrate(model, recipe_of(model.name, "shapes"))
    with pytest.raises(lrcore.InputError, match="is a llama model, which reads no images"):
        lrcore.score_choices(model, "shapes", items=4)


def test_perplexity_raises_for_images(multimodal_folder):
    model = lrcore.load(multimodal_folder())
    with pytest.raises(
        lrcore.InputError, match="Use a data set of text for perplexity, answers and healing"
    ):
        lrcore.evaluate(model, "shapes", seq_len=32, samples=2)


def test_unknown_patch_tokens_raise(multimodal_folder):
    model, texts = lrcore.load(multimodal_folder()), load_texts("shapes")
    encode = text_encoder(model, texts.images)
    tokens = torch.tensor([encode(texts.documents[0]).input_ids])
    load_images(encode, tokens[:, :0])
    with pytest.raises(lrcore.InputError, match="images that the model has not encoded"):
        model.network(input_ids=tokens)


def test_missing_image_preprocessor_raises(multimodal_folder, tiny_llama, tmp_path):
    model = lrcore.load(multimodal_folder())
    model.folder = tmp_path
    copy_tokenizer(tiny_llama, tmp_path)
    with pytest.raises(lrcore.InputError, match=r"Copy preprocessor_config\.json"):
        lrcore.score_choices(model, "shapes", items=4)


def test_cluster_workers_raise_for_images(multimodal_folder):
    class Elsewhere:
        count = 2

    model = lrcore.load(multimodal_folder())
    with (
        worked_by(pool.Pool(Elsewhere())),
        pytest.raises(lrcore.InputError, match="Workers of a cluster cannot read images"),
    ):
        lrcore.score_choices(model, "shapes", items=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"image": "nowhere.png"},
            "'nowhere.png' is neither a file in the folder",
        ),
        ({"image": "../outside.png"}, "is outside the folder of the questions"),
        ({"image": 3}, "image must be a file in the folder of the questions"),
        ({"image": base64.b64encode(b"no image").decode()}, "cannot be prepared"),
        ({"image": HUGE}, "it has 9,000 x 9,000 pixels"),
        ({"groups": "NAT"}, "groups must be a list of names"),
    ],
)
def test_unreadable_questions_raise(fields, message, multimodal_folder, tmp_path):
    (tmp_path / "outside.png").write_bytes(b"x")
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "questions.jsonl"
    item = {"question": "What is it?", "choices": ["a cat", "a dog"], "label": 0}
    file.write_text(json.dumps(item | fields))
    with pytest.raises(lrcore.InputError, match=re.escape(message)):
        lrcore.score_choices(lrcore.load(multimodal_folder()), str(file))


def test_shapes_are_reproducible():
    texts = load_texts("shapes/calibration")
    assert texts.fingerprint == load_texts("shapes").fingerprint
    assert len(texts.documents) == 256
    keys = MARKER.findall(texts.joined())
    assert texts.images.keys() == set(keys)
    assert math.isclose(len(keys) / 256, 0.75, abs_tol=0.1)
    with pytest.raises(lrcore.InputError, match="Unknown split of shapes 'tset'"):
        load_texts("shapes/tset")
