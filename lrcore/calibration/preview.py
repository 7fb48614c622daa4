"""How a calibration text begins, known before anything is calibrated."""

from typing import Any

from .. import data
from ..data.held_out import file_and_split
from ..image_tokens import text_of
from ..models.hub import DEMO_MODELS, locate
from ..models.load import read_tokenizer
from ..places import place_of
from ..recipe import Recipe

CHARACTERS = 16  # read for each token: of texts in any language a token has fewer


def text_head(recipe: Recipe, tokenizer: Any = None) -> str:
    """The first `seq_len` tokens of a recipe's calibration text, decoded: of sampling "first" the
    first window, where the text has one.

    tokenizer: of the recipe's model, read from the model's folder where it is None. Nothing is
    downloaded or converted: "" for a text or a model that is not on this machine, and for a text
    with images. Raises InputError where text or tokenizer cannot be read.
    """
    if not _is_here(recipe.data):
        return ""
    if tokenizer is None:
        if recipe.model not in DEMO_MODELS and not place_of(recipe.model).is_dir():
            return ""
        tokenizer = read_tokenizer(locate(recipe.model, recipe.revision))
    texts = data.load_texts(recipe.data, role="calibration")
    if texts.images:
        return ""
    head = texts.joined()[: CHARACTERS * recipe.seq_len]
    return text_of(tokenizer, data.tokenise(head, tokenizer).ids[: recipe.seq_len])


def _is_here(name: str) -> bool:
    """Whether all of a text, or of a mixture of texts, is on this machine."""
    if file_and_split(name)[0]:
        return True
    own = (part.rpartition("*")[2].partition("/")[0].strip() for part in name.split("+"))
    return all(one in data.BUILTIN for one in own)
