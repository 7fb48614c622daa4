"""Multimodal models are calibrated and evaluated with images, whose patches are tokens."""

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
from transformers import AutoProcessor

import lrcore
from lrcore.data import load_texts
from lrcore.evaluation.evaluate import window_losses
from lrcore.evaluation.tasks import continuations, few_shot_items
from lrcore.layers.image_tokens import (
    IGNORED,
    enable_patches,
    first_id,
    highest_token,
    is_patch,
    targets,
)
from lrcore.models.images import load_images, text_encoder
from lrcore.runs.cluster import pool
from lrcore.system.units import worked_by

MARKER = re.compile("<image:([0-9a-f]{16})>")
TEXTS = ("svd_llm", "a3", "modegpt", "latentllm", "fused")


def png_of(width: int, height: int) -> bytes:
    """Return a file of a few bytes that claims a large number of black pixels."""
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    exported = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(exported)


HUGE = base64.b64encode(png_of(9_000, 9_000)).decode()


@pytest.fixture(scope="module")
def pictured(tiny_llama, tmp_path_factory):
    folders = {}

    def folder(kind="llava"):
        if kind not in folders:
            path = tmp_path_factory.mktemp(kind)
            folders[kind] = str(pictured_models.make(kind, tiny_llama, path))
        return folders[kind]

    return folder


def of_transformers(model, text, images):
    """Return the output of the model's processor for a text with at most one image."""
    keys = MARKER.findall(text)
    image = Image.open(io.BytesIO(images[keys[0]])).convert("RGB") if keys else None
    processed = AutoProcessor.from_pretrained(model.folder)(
        text=MARKER.sub("<image>", text),
        images=image,
        return_tensors="pt",
        add_special_tokens=False,
    )
    return {
        name: value.to(model.network.dtype) if value.is_floating_point() else value
        for name, value in processed.items()
    }


@pytest.mark.parametrize("kind", pictured_models.KINDS)
def test_patches_as_tokens_give_the_logits_of_the_image(kind, pictured):
    model, texts = lrcore.load(pictured(kind), dtype="float64"), load_texts("shapes")
    encode = text_encoder(model, texts.images)
    for text in [element for element in texts.documents if MARKER.search(element)][:3]:
        tokens = torch.tensor([encode(text).input_ids])
        load_images(encode, tokens)
        processed = of_transformers(model, text, texts.images)
        assert tokens.shape == processed["input_ids"].shape
        assert is_patch(tokens).sum() >= 4
        with torch.inference_mode():
            ours, theirs = model.network(input_ids=tokens), model.network(**processed)
        assert torch.equal(ours.logits, theirs.logits)


def test_a_text_without_images_is_the_same_before_and_after(pictured):
    model, texts = lrcore.load(pictured()), load_texts("shapes")
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


def test_copies_of_the_modules_know_images_that_came_later(pictured):
    model, texts = lrcore.load(pictured()), load_texts("shapes")
    encode, two = text_encoder(model, texts.images), list(texts.images)[:2]
    ids = [torch.tensor([encode(f"<image:{key}> is").input_ids]) for key in two]
    load_images(encode, ids[0])
    copied = copy.deepcopy(model.network)
    load_images(encode, ids[1])
    with torch.inference_mode():
        for element in ids:
            actual, expected = (net(input_ids=element).logits for net in (model.network, copied))
            assert torch.equal(actual, expected)


def test_patches_are_no_targets():
    tokens = torch.tensor([[5, first_id("f" * 16), first_id("f" * 16) + 1, 7, 9]])
    assert targets(tokens).tolist() == [[IGNORED, IGNORED, 7, 9]]
    assert highest_token(tokens) == 9


def recipe_of(model, data, **options):
    processed = {"samples": 6, "seq_len": 48, "ratio": 0.3, "sampling": "first"} | options
    return lrcore.Recipe(model=model, data=data, **processed)


def test_calibration_sees_the_images(pictured):
    """The moments equal those of a forward pass with images in transformers."""
    model = lrcore.load(pictured(), dtype="float64")
    calibrated = lrcore.calibrate(model, recipe_of(model.name, "shapes", dtype="float64"))
    assert is_patch(calibrated.tokens).any()
    assert is_patch(calibrated.unseen_tokens).any()
    texts = load_texts("shapes")
    (first, *_), length = texts.documents, 0
    processed, inputs = of_transformers(model, first, texts.images), []
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
def test_a_method_compresses_by_images_and_answers_by_them(method, pictured, tmp_path):
    model = lrcore.load(pictured())
    options = {"refit": "auto"} if method == "fused" else {}
    small = lrcore.compress(model, recipe_of(model.name, "shapes", method=method, **options))
    result = lrcore.score_choices(small, "shapes", items=12)
    assert result.nonfinite == 0
    back = lrcore.load(lrcore.save(small, tmp_path / "small"))
    assert lrcore.score_choices(back, "shapes", items=12) == result


@pytest.mark.parametrize("policy", ["probed", "fisher", "sensitivity"])
def test_a_policy_measures_on_images(policy, pictured):
    model = lrcore.load(pictured())
    recipe = recipe_of(model.name, "shapes", method="svd_llm", policy=policy)
    plan = lrcore.allocate(lrcore.prepare(model, recipe), recipe)
    assert len(set(plan.ranks.values())) > 1


def test_scores_are_those_of_transformers(pictured):
    model = lrcore.load(pictured(), dtype="float64")
    chosen = few_shot_items(model, "shapes", 6, 0)
    assert sum("images" in item for item in chosen) in range(2, 6)
    right = []
    for item in chosen:
        scores = []
        for context, choice in continuations(item):
            processed = of_transformers(model, context + choice, item.get("images", {}))
            begin = of_transformers(model, context, item.get("images", {}))["input_ids"].shape[1]
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


def test_images_of_a_task_are_forgotten_and_those_of_calibration_stay(pictured):
    model = lrcore.load(pictured())
    windows = lrcore.calibrate(model, recipe_of(model.name, "shapes")).tokens
    with torch.inference_mode():
        before = model.network(input_ids=windows).logits
    patches, texts = enable_patches(model.network.get_input_embeddings()), load_texts("shapes/test")
    lrcore.score_choices(model, "shapes", items=12)
    assert not any(first_id(key) in patches for key in texts.images)
    with torch.inference_mode():
        assert torch.equal(model.network(input_ids=windows).logits, before)


def test_examples_keep_their_images(pictured):
    result = lrcore.score_choices(lrcore.load(pictured()), "shapes", items=4, shots=2)
    assert result.protocol["shots"] == 2
    assert result.nonfinite == 0


def test_questions_of_a_file_with_their_images(pictured, tmp_path):
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
    model = lrcore.load(pictured())
    actual, built_in = (
        lrcore.score_choices(model, str(element), items=12) for element in (file, "shapes")
    )
    assert (actual.accuracy, actual.groups) == (built_in.accuracy, built_in.groups)
    windows = lrcore.calibrate(model, recipe_of(model.name, str(file), samples=2)).tokens
    assert is_patch(windows).any()


def test_losses_pass_over_patches(pictured):
    model, texts = lrcore.load(pictured()), load_texts("shapes")
    encode = text_encoder(model, texts.images)
    text = next(element for element in texts.documents if MARKER.search(element))
    tokens = torch.tensor([encode(text).input_ids])
    load_images(encode, tokens)
    losses = window_losses(model, tokens)[0]
    assert (losses[is_patch(tokens[0, 1:])] == 0).all()
    assert (losses[~is_patch(tokens[0, 1:])] > 0).all()


def test_a_table_has_a_row_for_every_group(pictured, tmp_path):
    values = {"model": pictured(), "data": "shapes", "samples": 2, "seq_len": 48, "method": "a3"}
    sweep = lrcore.Sweep.from_dict(
        values | {"tasks": [{"task": "shapes", "items": 9}], "evaluation": [], "ratios": [0.3]}
    )
    rows = lrcore.run_sweep(lrcore.load(pictured()), sweep, tmp_path)
    small = [row for row in rows if row.ratio == 0.3]
    assert [row.error for row in small] == [None] * len(small)
    named = {row.measured_on: row.accuracy for row in small}
    assert named.keys() == {
        "task shapes",
        *(f"task shapes, {group}" for group in ("colour", "shape", "place", "IMG", "TXT")),
    }


def test_a_window_is_shown_with_its_images(pictured):
    model = lrcore.load(pictured())
    text_shown = lrcore.calibrate(model, recipe_of(model.name, "shapes")).text(model.tokenizer)
    assert text_shown.startswith("[image]")
    assert "Question" in text_shown


# --- errors ---


def test_a_model_of_text_reads_no_images(tiny_llama):
    model = lrcore.load(str(tiny_llama))
    with pytest.raises(lrcore.InputError, match="is a llama model, which reads no images"):
        lrcore.calibrate(model, recipe_of(model.name, "shapes"))
    with pytest.raises(lrcore.InputError, match="is a llama model, which reads no images"):
        lrcore.score_choices(model, "shapes", items=4)


def test_perplexity_and_healing_need_text(pictured):
    model = lrcore.load(pictured())
    with pytest.raises(
        lrcore.InputError, match="Use a data set of text for perplexity, answers and healing"
    ):
        lrcore.evaluate(model, "shapes", seq_len=32, samples=2)


def test_tokens_of_another_model(pictured):
    model, texts = lrcore.load(pictured()), load_texts("shapes")
    tokens = torch.tensor([text_encoder(model, texts.images)(texts.documents[0]).input_ids])
    enable_patches(model.network.get_input_embeddings())
    with pytest.raises(lrcore.InputError, match="images that the model has not encoded"):
        model.network(input_ids=tokens)


def test_a_folder_that_does_not_say_how_images_are_prepared(pictured, tiny_llama, tmp_path):
    model = lrcore.load(pictured())
    model.folder = tmp_path
    copy_tokenizer(tiny_llama, tmp_path)
    with pytest.raises(lrcore.InputError, match=r"Copy preprocessor_config\.json"):
        lrcore.score_choices(model, "shapes", items=4)


def test_workers_elsewhere_read_no_images(pictured):
    class Elsewhere:
        count = 2

    model = lrcore.load(pictured())
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
def test_a_question_that_cannot_be_read(fields, message, pictured, tmp_path):
    (tmp_path / "outside.png").write_bytes(b"x")
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "questions.jsonl"
    item = {"question": "What is it?", "choices": ["a cat", "a dog"], "label": 0}
    file.write_text(json.dumps(item | fields))
    with pytest.raises(lrcore.InputError, match=re.escape(message)):
        lrcore.score_choices(lrcore.load(pictured()), str(file))


def test_shapes_are_the_same_every_time():
    texts = load_texts("shapes/calibration")
    assert texts.fingerprint == load_texts("shapes").fingerprint
    assert len(texts.documents) == 256
    keys = MARKER.findall(texts.joined())
    assert texts.images.keys() == set(keys)
    assert math.isclose(len(keys) / 256, 0.75, abs_tol=0.1)
    with pytest.raises(lrcore.InputError, match="Unknown split of shapes 'tset'"):
        load_texts("shapes/tset")
