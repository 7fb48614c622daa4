"""The reasons why the model of a recipe decodes slower than the dense model."""

from ..layers.sparse_product import has_sparse_product
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
KEPT_SPARSE = (
    "On a CPU this model can take up to a quarter longer per decoded token than the dense model, "
    "and needs more memory: each step multiplies sparse matrices, which stay in memory."
)


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
    is_kept = recipe.dtype == "float32" and has_sparse_product()
    slow = structures - {SPARSE} if is_kept else structures
    work = dict.fromkeys(text for name, text in WORK.items() if name in slow)
    if not work:
        return KEPT_SPARSE if SPARSE in structures else ""
    return (
        "On a CPU this model takes longer per decoded token than the dense model: each step "
        f"{' and '.join(work)}."
    )
