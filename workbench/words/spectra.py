"""Words of the page's head, the sidebar and the Spectra tab."""

from collections.abc import Collection
from pathlib import Path

import lrcore
from lrcore.models.load import DEMO_MODELS
from lrcore.system.path_access import strip_paths

# The page and the sidebar
APP_NAME = "Low-Rank Workbench"
INTRO = "See where a model can be compressed, tune a budget on the curves, and compare the answers."
LOGIN = "Enter any user name and the password that the server was started with."
ANALYZE = "Analyze"
EXPERT = "Expert settings"
SOURCE_SETTINGS = "Revision, data type, device"
WINDOW_SETTINGS = "Calibration windows"
RECIPE_AND_EXAMPLES = "Recipe and examples"
SAVE_RECIPE, LOAD_RECIPE, EXAMPLES = "Save recipe", "Load recipe", "Examples"
SETTINGS_LOADED = "Settings loaded."
FREE_MEMORY = "{:.3g} of {:.3g} GB memory free"
USED_MEMORY = "{} memory: {} used"
# By method: (title, fields of the recipe). The settings are those of the paper if they suit a small
# model.
EXAMPLE_RECIPES = {
    "a3": ("A³: components, uniform ranks, −20 %", {"ratio": 0.2}),
    "modegpt": ("MoDeGPT: softmax of Block Influence, −30 %", {"ratio": 0.3, "policy": "softmax"}),
    "latentllm": ("LatentLLM: joint latents, −20 %", {"ratio": 0.2}),
    "care": ("CARE: latent KV cache, water-filling, −30 %", {"ratio": 0.3, "policy": "waterfill"}),
    "svd_llm": ("SVD-LLM: whitened matrices, −20 %", {"ratio": 0.2}),
    "fused": ("Fused: centered, refit, probed ranks, −30 %", {"ratio": 0.3, "policy": "probed"}),
}

# Notes in place of a missing result
NOT_ANALYZED = "These settings have not been analyzed. Press Analyze in the sidebar."
WORKING = "The analysis is running. Its result will appear here."
STALE = "These settings have not been analyzed. The curves show the previous ones."
STALE_FOR_NOW = "The analysis is running. Until it ends, the curves show the previous settings."
NO_FACTORS = (
    "The method's factors have not been computed for these settings. Press Analyze in the sidebar; "
    "the factors are then reused for every slider move."
)

# The heatmap
MEASURES = {  # name in the table: (label, label of the color bar, number format)
    "effective_rank": ("Effective rank", "fraction of full rank", ".0f"),
    "energy_rank": ("Energy rank", "fraction of full rank", ".0f"),
    "stable_rank": ("Stable rank", "fraction of full rank", ".1f"),
    "condition": ("Condition number", "log10", ".1e"),
    "increase": ("Increase in loss (probed)", "log10", ".1e"),
}
KINDS = {"Activation-aware": "aware", "Raw weight": "raw"}
# Rows of the heatmap: products of matrices that are compressed jointly, and single matrices
GROUPS = ("Joint", "Matrices")
MEASURE, SPECTRUM_KIND, ENERGY_THRESHOLD = "Measure", "Spectrum", "Energy threshold"
OF_THE_SPECTRUM = (
    " It describes the singular values alone. The measure 'Increase in loss (probed)' is the "
    "effect on the model."
)
MEASURE_HELP = {
    "effective_rank": "Effective number of directions: exponential of the spectral entropy (Roy "
    "and Vetterli 2007). Dark: a few directions carry most of the energy. Bright: many do."
    + OF_THE_SPECTRUM,
    "energy_rank": "Smallest number of singular values that hold the chosen fraction of the energy "
    "(the sum of squares). Dark: a small fraction of the full rank. Bright: a large one."
    + OF_THE_SPECTRUM,
    "stable_rank": "Sum of squares divided by the largest square. Dark: a single direction "
    "dominates. The stable rank hardly depends on the small singular values." + OF_THE_SPECTRUM,
    "condition": "Largest singular value divided by the smallest. Bright: the smallest is far "
    "below the largest. Dark: all are of similar size." + OF_THE_SPECTRUM,
    "increase": "Each slot of the chosen method was truncated alone, to the probed rank nearest to "
    "the budget in the Allocation tab. The increase in loss (nats per token) is the divergence of "
    "the predictions from those of the dense model. Bright: the increase is large.",
}
PROBE_FIRST = (
    "The increase in loss has to be measured: every slot of {} is truncated alone, to four ranks."
)
PROBES_NOW = "The slots of {} are being measured. The map will appear here."
SPECTRUM_AND_LOSS = (
    " Below: energy lost (spectrum) against increase in loss (measured). The rank correlation over "
    "{} slots is {:.2f}."
)

# The selected cell
CELLS_BY_KEYBOARD = "Heatmap. Arrow keys move, Enter selects. Layer"
PREVIEW = "Preview. Click the cell, or press Enter, to keep it."
CLICK_A_CELL = "Click a cell to see its singular values."
HEAD_BOX, SCALE = "Head", "Scale"
HEAD, ALL_HEADS, EACH_HEAD = "Head {}", "All heads", "Each head"
COMPARE_LAYERS = "Compare with layers (or Ctrl-click cells)"
LAYER, ALL_LAYERS = "layer {}", "all layers"
AWARE_TITLE = "{}, activation-aware"
TABLE, DOWNLOAD_CSV = "Table", "Download CSV"
NO_RANK = "The chosen method assigns no rank to {name}."

# Captions of figures
AT_THRESHOLD = " at {:g} of the energy"
SOURCE = "{model} · calibrated on {data}: {samples} windows × {seq_len} tokens ({order})"
FROM_THE_START, SEEDED = "from the start of the text", "{sampling}, seed {seed}"
PROBED_NEAR = "{method}, probed near {ratio:.1%} removed"


def slot_title(layer: int, component: str, head: int = -1) -> str:
    """Return the title of a slot. head: -1 for all heads together, -2 for each head."""
    title = f"Layer {layer} · {component}"
    if head >= 0:
        return f"{title} · head {head}"
    return f"{title} · each head" if head == -2 else title


def compared_layers(layers: Collection[int], layer_count: int) -> str:
    """Return the part of a caption that lists the layers compared with the selected layer."""
    if not layers:
        return ""
    if len(layers) == layer_count - 1:
        return " (thick line), compared with all layers"
    return f", compared with layers {', '.join(map(str, sorted(layers)))}"


def built_in_model(name: str) -> str:
    """Return the label of a built-in model; published models are marked."""
    return name if name in DEMO_MODELS else f"{name} · published"


def short_name(name: str) -> str:
    """Return the last part of an absolute path; any other name stays."""
    return Path(name).name if Path(name).is_absolute() else name


def window_order(sampling: str, seed: int | None) -> str:
    """Return how the windows were taken from a text."""
    if sampling == "first":
        return FROM_THE_START
    return sampling if seed is None else SEEDED.format(sampling=sampling, seed=seed)


def source_caption(recipe: lrcore.Recipe, *first_parts: str) -> str:
    """Return the source of a figure: the given parts, then model and calibration text."""
    fields = recipe.to_dict() | {"order": window_order(recipe.sampling, recipe.seed)}
    fields |= {name: short_name(fields[name]) for name in ("model", "data")}
    return strip_paths(" · ".join([*first_parts, SOURCE.format(**fields)]))


def recipe_caption(recipe: lrcore.Recipe, sentence: str) -> str:
    """Return the source of a figure after a sentence with fields of the recipe in it."""
    return source_caption(recipe, sentence.format(**recipe.to_dict()))


def kind_name(kind: str) -> str:
    """Return the label of a kind of spectrum, in lower case for the middle of a sentence."""
    return next(label for label, name in KINDS.items() if name == kind).lower()
