"""Which recipes make models that decode slower than the dense model, and why."""

from ..methods import find_method
from ..ranks.policies import find_policy
from ..recipes.recipe import Recipe
from ..recipes.targets import BIASED_LATENTS, LATENT_KEYS, QUANTIZED, SPARSE
from .solve.factorize import method_options

KEYS_AGAIN = "computes the keys of all earlier tokens from their cached latents"
# By structure: what a decoder does for each token in addition to the products.
WORK = {
    LATENT_KEYS: KEYS_AGAIN,
    BIASED_LATENTS: KEYS_AGAIN,
    QUANTIZED: "dequantizes all matrices",
    SPARSE: "makes the sparse matrices dense",
}


def slower_decoding(recipe: Recipe) -> str:
    """Return why a recipe's model takes longer per decoded token than the dense model on a CPU.

    One sentence; "" if it need not. Raises InputError for an unknown method or option.
    """
    row = find_method(recipe.method)
    options = row.choose(method_options(recipe))
    forms = getattr(options, "forms", "")
    if forms == "latents" or (forms == "codes" and find_policy(recipe.policy).forms):
        structures = row.structures(options)
    else:
        structures = {row.structure(slot, options) for slot in row.components}
    if recipe.budget == "bytes":
        structures.add(QUANTIZED)
    work = dict.fromkeys(text for name, text in WORK.items() if name in structures)
    if not work:
        return ""
    return (
        "On a CPU this model takes longer per decoded token than the dense model: each step "
        f"{' and '.join(work)}."
    )
