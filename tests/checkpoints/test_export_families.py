"""Every family by every method: exported, moved away, and loaded where this project is not
installed; every family by one of the methods is saved there again and loaded once more.
"""

from functools import cache

import pytest
import torch
from elsewhere import TOKENS, loaded_elsewhere
from tiny_models import family_folder, structures_of

import lrcore
from lrcore.models.architectures import ARCHITECTURES

FEW = ("llama", "gpt2", "bloom")  # the odd ones; the others take minutes
CASES = [
    pytest.param(
        family, method, id=f"{family}-{method}", marks=() if family in FEW else pytest.mark.slow
    )
    for family in ARCHITECTURES
    for method in structures_of(family)
]


@pytest.fixture(scope="module")
def here_and_there(tiny_llama, story_file, tmp_path_factory, request):
    """The logits of a compressed model in this process, and those of its export in a process
    that loads many, by family and method; of the families whose tests are run.
    """
    asked = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {call.params.get("family") for call in asked if call is not None}

    @cache
    def of(few: bool) -> dict:
        own, moved, again = {}, [], []
        folder = tmp_path_factory.mktemp("exports")
        (folder / "away").mkdir()
        families = [n for n in ARCHITECTURES if (n in FEW) == few and n in wanted]
        for number, family in enumerate(families):
            dense = family_folder(family, tiny_llama, folder / f"dense-{family}")
            methods = structures_of(family)
            for place, method in enumerate(methods):
                again.append(place == number % len(methods))
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
                    own[family, method] = small.network(TOKENS).logits
                lrcore.export(small, folder / f"{family}-{method}")
                moved.append(
                    (folder / f"{family}-{method}").rename(folder / "away" / f"{family}-{method}")
                )
        return {
            key: (logits, result)
            for (key, logits), result in zip(
                own.items(), loaded_elsewhere(moved, folder, again), strict=True
            )
        }

    return of


@pytest.mark.parametrize(("family", "method"), CASES)
def test_an_export_moved_away_gives_the_same_logits_without_this_project(
    family, method, here_and_there
) -> None:
    own, result = here_and_there(family in FEW)[family, method]
    assert isinstance(result, torch.Tensor), result
    if ARCHITECTURES[
        family
    ].experts:  # the last bit of their grouped products depends on where a weight lies in memory
        assert torch.allclose(result, own, atol=1e-5)
    else:
        assert torch.equal(result, own)
