"""Perplexities of exported trained models without this package."""

import json

import pytest
from elsewhere import elsewhere

import lrcore

# Script that prints the perplexity by folder, computed with its tokenizer and model: exp of the
# mean loss over the first windows of a text.
PERPLEXITY = """
import json, math, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
found = {}
for folder, text, windows, length in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    ids = tokenizer(open(text, encoding="utf-8").read(), add_special_tokens=False)["input_ids"]
    tokens = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)[:windows]
    losses = []
    for part in tokens.split(1):
        with torch.inference_mode():
            logits = model(part).logits[:, :-1].flatten(0, 1).double()
        losses.append(torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten()).item())
    found[folder] = math.exp(sum(losses) / len(losses))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def reference_models(reference):
    """Return folder, text, windows, tokens per window and reference perplexity by model name."""
    models, text = reference / "models", reference / "text/tinystories.evaluation.txt"
    return {
        "stories260K": (models / "stories260K", text, 128, 256, 8.0763),
        "slm4096-gpt2": (models / "slm4096-gpt2", models / "slm4096-gpt2/corpus.txt", 8, 64, None),
    }


def test_exported_trained_models_have_the_reference_perplexity(
    reference_models, reference, tmp_path
) -> None:
    requested, expected = [], {}
    for name, (folder, text, windows, length, dense) in reference_models.items():
        model = lrcore.load(str(folder))
        calibration = str(reference / "text/tinystories.calibration.txt") if dense else str(text)
        recipe = lrcore.Recipe(
            model=str(folder),
            data=calibration,
            samples=16,
            seq_len=length,
            sampling="first",
            method="a3",
            ratio=0.1,
        )
        small = lrcore.compress(model, recipe)
        for kind, model_variant in {
            "dense": model,
            "small": small,
            "codes": lrcore.quantize(small, 8),
        }.items():
            out = lrcore.export(model_variant, tmp_path / f"{name}-{kind}")
            if kind == "dense" and dense:
                requested.append((str(out), str(text), windows, length))
                expected[str(out)] = dense
            else:
                requested.append((str(out), str(text), 8, length))
                expected[str(out)] = lrcore.evaluate(
                    model_variant, str(text), samples=8, seq_len=length, sampling="first"
                ).perplexity
    result = json.loads(elsewhere(PERPLEXITY, json.dumps(requested), cwd=tmp_path))
    for folder, value in expected.items():
        assert result[folder] == pytest.approx(value, rel=1e-4), folder
