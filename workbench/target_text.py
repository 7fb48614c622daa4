"""Words of targets: what will run the compressed model."""

import lrcore

WITH_CODE, STOCK = "transformers", "transformers-stock"
COSTS = "At this budget perplexity is predicted to be {}; {} where any form may be used ({})."


# What an export is, by the target that it is for; vLLM takes the first
FORMATS = {
    "transformers": "folder with its code",
    "transformers-stock": "stock architecture, without code",
    "mla": "latent attention (youtu), without code",
    "llama.cpp": "GGUF file in f16",
}
FILE_NOT_PUSHED = "A GGUF file is not pushed: upload it with `hf upload`, or choose a folder."


def formats(stock: bool) -> list[tuple[str, str]]:
    """What the list of formats offers; stock: whether a stock architecture has the ranks."""
    return [(words, name) for name, words in FORMATS.items() if stock or name != STOCK]


def format_of(recipe: lrcore.Recipe, stock: bool) -> str:
    """The format that a recipe's target takes."""
    own = recipe.target if recipe.target in FORMATS else WITH_CODE
    return WITH_CODE if own == STOCK and not stock else own


def of_target(name: str) -> str:
    """What a target is, and what it runs natively."""
    target = lrcore.TARGETS[name]
    even = ", the same in all layers" if target.even else ""
    return f"{name} ({target.about}) runs {target.runs}{even}."
