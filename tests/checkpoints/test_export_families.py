"""Exports of all families and methods, loaded without this package; a method per family is also
saved again.
"""

from functools import cache

import pytest
import torch
from elsewhere import TOKENS, loaded_elsewhere
from tiny_models import ONE_EACH, family_folder, sampled, structures_of

import lrcore
from lrcore.models.architectures import ARCHITECTURES

pytestmark = pytest.mark.one_in(3)

FEW = ("llama", "gpt2", "bloom")  # representative families; all families take minutes
CASES = sampled(lambda family, _: family in FEW)


@pytest.fixture(scope="module")
def both_logits(tiny_llama, story_file, tmp_path_factory, request):
    """Return a function that gives, by family and method of the selected tests, the logits of
    compressed models in this process and of their exports in a subprocess.
    """
    selected = {
        (item.callspec.params["family"], item.callspec.params["method"])
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }

    @cache
    def of(few: bool) -> dict:
        expected_logits, moved, saved_again = {}, [], []
        folder = tmp_path_factory.mktemp("exports")
        (folder / "away").mkdir()
        for family in (name for name in ARCHITECTURES if (name in FEW) == few):
            methods = [name for name in structures_of(family) if (family, name) in selected]
            if not methods:
                continue
            dense = family_folder(family, tiny_llama, folder / f"dense-{family}")
            for method in methods:
                saved_again.append(method == ONE_EACH[family])
                recipe = lrcore.Recipe(
                    model=str(dense),
                    data=str(story_file),
                    samples=4,
                    seq_len=32,
                    ratio=0.3,
                    method=method,
                )
                small = lrcore.compress(lrcore.load(str(dense)), recipe)
                with torch.inference_mode():
                    expected_logits[family, method] = small.network(TOKENS).logits
                lrcore.export(small, folder / f"{family}-{method}")
                moved.append(
                    (folder / f"{family}-{method}").rename(folder / "away" / f"{family}-{method}")
                )
        return {
            key: (logits, result)
            for (key, logits), result in zip(
                expected_logits.items(), loaded_elsewhere(moved, folder, saved_again), strict=True
            )
        }

    return of


@pytest.mark.parametrize(("family", "method"), CASES)
def test_a_moved_export_gives_the_same_logits_without_this_project(
    family, method, both_logits
) -> None:
    expected_logits, result = both_logits(family in FEW)[family, method]
    assert isinstance(result, torch.Tensor), result
    if ARCHITECTURES[
        family
    ].experts:  # the last bit of grouped products depends on the memory address of a weight
        assert torch.allclose(result, expected_logits, atol=1e-5)
    else:
        assert torch.equal(result, expected_logits)


def test_the_card_names_the_class_and_the_task_of_a_family_without_a_causal_class(
    tiny_llama, tmp_path
) -> None:
    """transformers lists mistral4, which reads no images, among the models of images and text."""
    model = lrcore.load(str(family_folder("mistral4", tiny_llama, tmp_path / "dense")))
    loaders = {False: "AutoModelForCausalLM", True: "AutoModelForImageTextToText"}
    for standard, loader in loaders.items():
        folder = lrcore.export(model, tmp_path / loader, standard=standard)
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert f"model = {loader}.from_pretrained(folder" in card
        assert "pipeline_tag: text-generation" in card
