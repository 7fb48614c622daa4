"""All sentences and labels of the page."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import lrcore

from .numbers import count, megabytes, perplexity, several

NAME = "Low-Rank Workbench"
INTRO = "See where a model can be compressed, tune a budget on the curves, and compare the answers."

LOGIN = "Any user name, and the password that the server was started with."
ANALYSE = "Analyse"
SOURCE, WINDOWS, RECIPE = (
    "Revision, data type, device",
    "Calibration windows",
    "Recipe and examples",
)
SAVE_RECIPE, LOAD_RECIPE = "Save recipe", "Load recipe"
EXAMPLES = "Examples"
RECIPE_LOADED = "The recipe is in the form now."

MEASURES = {
    "effective_rank": ("Effective rank", "share of the full rank", ".0f"),
    "energy_rank": ("Energy rank", "share of the full rank", ".0f"),
    "stable_rank": ("Stable rank", "share of the full rank", ".1f"),
    "condition": ("Condition number", "log10", ".1e"),
    "increase": ("Increase in loss (probed)", "log10", ".1e"),
}
KINDS = {"Activation-aware": "aware", "Raw weight": "raw"}
SPECTRA_HELP = {
    "effective_rank": "exp of the entropy of the singular values: how many directions share the "
    "work (Roy and Vetterli 2007). Dark cells need few and tolerate a low rank; bright ones lose "
    "with every rank.",
    "energy_rank": "the fewest singular values that hold the chosen share of the energy (the sum "
    "of squares). Dark cells can be cut there almost for nothing; bright ones cannot.",
    "stable_rank": "sum of squares over the largest square: low, and dark, where a single "
    "direction dominates. It ignores the tail that a small rank would lose.",
    "condition": "largest over smallest singular value: bright cells have directions that hardly "
    "matter; dark ones use all of theirs.",
    "increase": "what the loss says: each slot of the chosen method alone was truncated, to the "
    "probed rank nearest to the budget under Allocation. Its increase in loss (nats/token) is how "
    "far the model's predictions then are from the dense model's. Bright cells cost most.",
}
CLICK_A_CELL = "Click a cell to see its singular values."
NOT_ANALYSED = "Nothing is analysed for these settings yet. Press Analyse in the sidebar."
WORKING = "The analysis is running: the result appears here."
STALE = "Not analysed with these settings yet: the curves show the previous ones."
STALE_FOR_NOW = "The analysis is running; until it has ended, curves show other settings."
NO_FACTORS = (
    "The method's factors are not computed for these settings yet. Press Analyse in the sidebar; "
    "they are kept for every later slider move."
)
MORE = "implementation notes"

UNIFORM_BARS = "Uniform ranks: every bar ends where the grey bar behind it does."
BARS = "Most is kept of layer {} · {} ({} of its rank), least of layer {} · {} ({})."
OPTIONS = "Options of {}"
SURVEY = "Every policy, layer by layer"
SURVEY_EVERY = "Add and measure every method"
SURVEY_CONCLUDE = (
    "Blue: the chosen policy; point at a grey line for its name. Where the lines differ, the "
    "policies disagree about which layers matter; where they meet, the choice hardly matters."
)
SURVEY_MISSING = "Not factorised yet: {}."
SURVEY_REFUSED = "Cannot meet this budget: {}."
EXAMPLE_RECIPES = {  # method: (title, recipe as its paper uses it, as far as a small model goes)
    "a3": ("A³: components, uniform shares, −20 %", {"ratio": 0.2}),
    "modegpt": ("MoDeGPT: softmax of Block Influence, −30 %", {"ratio": 0.3, "policy": "softmax"}),
    "latentllm": ("LatentLLM: joint latents, −20 %", {"ratio": 0.2}),
    "care": ("CARE: latent KV cache, water-filling, −30 %", {"ratio": 0.3, "policy": "waterfill"}),
    "svd_llm": ("SVD-LLM: whitened matrices, −20 %", {"ratio": 0.2}),
    "fused": ("Fused: centred, refit, probed ranks, −30 %", {"ratio": 0.3, "policy": "probed"}),
}
ENERGY_OF = "each component alone, on the calibration text; the mean"
PREDICTED_ON = "{} to {} in nine of ten cases, on the calibration data's test split{}"
PREDICTED_ALONE = (
    "on calibration text{}, from probes of single components; optimistic at high ratios"
)
PREDICTED_SEEN = "; probed on windows that the factors were made of (the text has too few others)"
DRAFTED = (
    "{} predicts these ranks. Before they are given they are measured on the model; where they "
    "hurt, uniform ranks are given."
)
AGAINST_UNIFORM = "the same method and budget, every layer the same share"
HURTS = "these ranks hurt on this model: {} ± {} above uniform ones"
HELPS = "these ranks help on this model: {} ± {} below uniform ones"
NO_MATTER = "no difference from uniform ranks beyond two standard errors ({} ± {})"
WITH_UNIFORM, MEASURED_PERPLEXITY = "with uniform ranks", "measured perplexity"
ON_CALIBRATION_TEXT = "on the calibration text"
NO_VERDICT = "measured on the calibration text: no verdict. A longer file has a held-out tail"
RANKED = (
    "Of what was measured at this budget, on the same small held-out sample, {} with {} is lowest."
)
NOT_RANKED = (
    "Measured on the calibration text, of which the file has too little to hold some out: which is "
    "lowest says little."
)
RANKED_HURTS = " {} with {}, shown above, is {} above it."
MEASURING, MEASURED_ON = "measuring…", "compressed in memory, on a small held-out sample"
NOT_MEASURED, NOT_FINITE = "not measured", "a loss is not finite"
TOO_LARGE = "this model is too large to measure at every move: press the button below"
METHODS_OWN = "method's own"
BUDGETS = {
    "auto": "what the method compresses",
    "params": "decoder parameters",
    "total": "all parameters",
    "kv": "KV cache",
    "flops": "compute per token",
    "latency": "latency",
}
LAYER_TIME = "latency per token"
CACHE, CONTEXT, TOKENS = "KV cache, {} tokens", "Tokens in the cache", "{} tokens"
RULE_OF_THUMB, LOGARITHMIC = "Rule of thumb here:", ", logarithmic"
SUGGESTED = f"small: uneven ranks; large: uniform ranks. {RULE_OF_THUMB} {{:.3g}}"
ONE_RECIPE = "Choose two to six runs to see where they differ."

EVALUATION = "Measure perplexity"
AS_CALIBRATED = "as calibrated"
MEASURED_TEXT_INFO = "its test split; of a file calibrated on, its held-out tail"
WINDOW_INFO = "0: 256, or the model's context where that is less"
SWEEP = "Sweep: methods × policies × ratios × calibration texts as one job"
TABLE = "Table of a paper, or a sweep file: rows of steps as one job"
TABLE_ROWS = "{}: {} rows, each measured on {}"
TABLE_INFO = "as `lrcore sweep NAME` makes it, on the model chosen at the left"
NEW_TOKENS, LAYERS_TO_DROP = "New tokens", "Layers to drop"
TEMPERATURE = "Temperature"
TOKEN_LOSSES = "Loss, token by token"
HEAL_BETA = "Weight of the distillation loss"
SWEEP_TABLES = {"CSV": "table.csv", "JSON": "table.json", "Report": "report.html"}
CROSS = "a cross-calibration study: two texts or more, all pairs"
SWEEP_EMPTY = "none: as in the form; several: each of them"
PROTOCOL_INFO = "windows: as set here; the others fix their own length, joins and special tokens"
SEQUENTIAL_NOTE = (
    "Calibration runs again layer by layer on the already compressed layers, so this takes longer."
)
NOTHING_QUEUED, CANCELLING = "No jobs yet.", "cancelling…"
NO_RUNS = (
    "No runs yet. Press Start under Compress; a finished run appears here and stays after a "
    "restart."
)
NO_SPEED = (
    "No run measured on this text has its speed measured: choose runs above and press Measure "
    "their speed."
)
FEW_POINTS = (
    "Left is smaller, down is better; click a point to add its run above or take it out. Runs "
    "appear here as they are measured."
)
FRONT = "Not dominated in size and perplexity: {}."
DOMINATED = " {} is dominated by {}."
DOMINATED_MORE = " {} more are dominated."
NO_RUN_CHOSEN = "No run is chosen. Choose one above."
PROMPT = "One morning, Tom went to the"
TOKENS_HELP = (
    "Red: the compressed model has a higher loss at this token than the dense one; blue: a lower "
    "one. Hover for the numbers (nats)."
)
RECIPES_EQUAL = "These runs are equal in every field."
NO_CUT = "The chosen method does not allocate {name} on its own, so no rank is drawn."
OTHER_BASE = (
    "The dense model's files have changed since this run was made: its delta mixes two models."
)
PASSAGE = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
    "sunshine with her friends."
)
EXPORT_HELP = (
    "Writes a folder or a file beside the checkpoint, for programs where the workbench is not "
    "installed. `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads a "
    "folder with its code, and without `trust_remote_code` those of transformers' own "
    "architectures. llama.cpp runs a GGUF file. What a format has no place for is multiplied out "
    "or filled with zeros, which the job's log says."
)
QUANTISE_HELP = (
    "Quantises the weights to 8 or 4 bits (HQQ, without data), as a run of its own that is "
    "measured as this one was and stands beside it in Compare. A matrix is dequantised whenever it "
    "is used: memory and disk shrink, time does not."
)
LAYERS_AND_WIDTH = "Drop whole layers, slice the hidden size, or share a basis between layers"
LAYERS_AND_WIDTH_HELP = (
    "Three ways to make the whole model smaller, without the ranks of the Allocation tab. The "
    "result is a run like any other, measured as set above."
)
DROP = (
    "**Drop whole layers.** What is left is a dense model of the same family, with a smaller KV "
    "cache."
)
SLICE = (
    "**Slice the hidden size** (SliceGPT). The residual stream is rotated to its principal "
    "components and the smallest are cut; layers and KV cache stay."
)
SLICE_RATIO = "share of the decoder parameters; the matrices between two bases count against it"
ROTATIONS = {
    "block": "one before every attention and MLP, with matrices between",
    "one": "one for all, without matrices",
}
TO_BE_SLICED = (
    "The hidden size goes from {of} to {width}, the decoder from {} to {} parameters, the whole "
    "model from {} to {} parameters, {} to {}{}."
)
SLICED_GROWS = ": more than before, for a head tied to the embeddings no longer can be"
SLICED = (
    "The hidden size went from {of} to {width}: requested to remove {requested:.1%} of the decoder "
    "parameters, removed {removed:.1%}{}."
)
SLICED_RESIDUAL = ", {} of those left being matrices between the bases"
ORDERS = {"influence": "Block Influence (ShortGPT)", "loss": "loss, one by one (SLEB)"}
DROPPED = (
    "{gone} would be dropped: Block Influence {least}, against {most:.3g} at most. It is 1 minus "
    "the mean cosine between what enters a layer and what leaves it, so it is small where the "
    "layer changes little."
)
DROPPED_LATER = (
    "Which {count} of {of} are dropped is decided while the job runs: each time the layer without "
    "which the loss on calibration windows is lowest."
)
DROPPED_SIZE = (
    " The model goes from {} to {} parameters, {} to {}, its KV cache from {} to {} bytes per "
    "token{}."
)
DROPPED_ALIKE = ", where all layers are of one size"
NO_RANKS = (
    "This run has no ranks of slots: layers were dropped, share a basis, or the hidden size was "
    "sliced."
)
SHORT_STOCK = "The model still has its stock architecture: a stock export needs no custom code."
HEAL_HELP = (
    "Fine-tunes what compression changed (of `care` the latents) on the run's calibration text, by "
    "cross-entropy and distillation from the dense model, and keeps the result as a run of its "
    "own, measured as this one was. A job that was stopped resumes where it was."
)
PUSH_HELP = (
    "Exports the run as chosen above and uploads that folder with the token of `hf auth login` or "
    "`HF_TOKEN`. "
    "Nothing is uploaded before you press Push."
)
STOCK_YES = "These ranks fit a stock architecture: the export needs no custom code."
STOCK_NOT = "No stock architecture has this shape: {}."
STOCK_NO = "No stock architecture has these ranks: {}."
STOCK_RANKS = " It would fit with {} and everything else uncompressed."
STOCK_UNKNOWN = (
    "Whether these ranks fit a stock architecture was not checked when this run was made. A stock "
    "export will tell."
)
DELETE_SURE = "Delete this run and its checkpoint for good?"


def paragraph(recipe, summary: dict, evaluation: lrcore.EvaluationSettings | None) -> str:
    """What Start will do."""
    counted = summary.get("budget", recipe.budget)
    what = (
        f"of the {budget(counted)}" if counted not in ("auto", "total") else f"of {budget(counted)}"
    )
    policy = recipe.policy + (
        f" at temperature {recipe.temperature:g}" if recipe.temperature else ""
    )
    lines = [
        f"**{recipe.method}** will remove **{recipe.ratio:.1%}** {what} of **{recipe.model}**, "
        f"ranks allocated by **{policy}**, "
        f"calibrated on {recipe.samples} {recipe.sampling} windows of {recipe.seq_len} tokens "
        f"from {recipe.data} (seed {recipe.seed})."
    ]
    if summary:
        lines.append(
            f"The model goes from {megabytes(summary['dense_megabytes'])} to "
            f"{megabytes(summary['megabytes'])}, its KV cache from "
            f"{count(summary['dense_kv_bytes_per_token'])} to "
            f"{count(summary['kv_bytes_per_token'])} bytes per token."
        )
    if recipe.overrides:
        lines.append(f"Set by hand: {several(len(recipe.overrides), 'rank')}.")
    if recipe.calibration == "sequential":
        lines.append(SEQUENTIAL_NOTE)
    if evaluation:
        lines.append(f"Then dense and compressed are measured: {protocol(asdict(evaluation))}.")
    lines.append("The run is kept under Runs & export; the dense model is not touched.")
    return " ".join(lines)


def standing(plan: lrcore.RankPlan, policy: str, drafted: bool) -> str:
    """Whether a plan is the one that compressing gives. drafted: see `Store.drafted`."""
    return DRAFTED.format(policy) if drafted else plan.account.planned.not_given(policy)


def stock(fit: lrcore.StockFit | None, dense: bool = False) -> str:
    """Whether ranks fit a stock architecture, why not, and which would.

    dense: no ranks made it.
    """
    if fit is None:
        return SHORT_STOCK if dense else STOCK_UNKNOWN
    if fit.qualifies:
        return SHORT_STOCK if dense else STOCK_YES
    width = next((rank for (_, name), rank in (fit.ranks or {}).items() if name == "mlp"), None)
    sentence = (STOCK_NOT if dense else STOCK_NO).format("; ".join(fit.reasons))
    return sentence + (STOCK_RANKS.format(f"{width} neurons in every MLP") if width else "")


def healed(history: Sequence[lrcore.Step]) -> str:
    """What the last healing was and did; nothing where there was none."""
    step = lrcore.last_step(history, lrcore.Healed)
    if step is None:
        return ""
    sentence = (
        f"Healed in {step.steps} steps on {step.data}, {count(step.tokens)} tokens, in "
        f"{duration(step.seconds)}"
    )
    if step.perplexity_before and step.perplexity_after:
        sentence += (
            f"; perplexity on {protocol(step.test_protocol)}: "
            f"{perplexity(step.perplexity_before)} before, "
            f"{perplexity(step.perplexity_after)} after"
        )
    return f"{sentence}."


def dropped(influence: list[float], gone: list[int], by: str, summary: dict) -> str:
    """What dropping layers would do.

    gone: those of least influence; by loss they stand for the size alone.
    """
    if by == "influence":
        values = ", ".join(f"{influence[i]:.3g}" for i in gone)
        words = DROPPED.format(gone=layers(gone), least=values, most=max(influence))
    else:
        words = DROPPED_LATER.format(count=len(gone), of=len(influence))
    sizes = [count(summary[f"{when}parameters"]) for when in ("dense_", "")]
    sizes += [megabytes(summary[f"{when}megabytes"]) for when in ("dense_", "")]
    sizes += [count(summary[f"{when}kv_bytes_per_token"]) for when in ("dense_", "")]
    return words + DROPPED_SIZE.format(*sizes, "" if by == "influence" else DROPPED_ALIKE)


def shortened(history: Sequence[lrcore.Step]) -> str:
    """Which layers went last, and why; nothing where none did."""
    step = lrcore.last_step(history, lrcore.Shortened)
    if step is None:
        return ""
    order = " in this order" if len(step.gone) > 1 else ""
    return (
        f"{layers(step.gone)} went{order}, of {step.of} counted from 0; chosen by "
        f"{ORDERS.get(step.by, step.by)}."
    )


def to_be_sliced(size: dict, dense: Any) -> str:
    """What slicing would leave.

    size: as `lrcore.sliced_size` gives it; dense: the size of the model.
    """
    counts = (
        dense.decoder_linear,
        size["decoder_parameters"],
        dense.parameters,
        size["parameters"],
    )
    weights = [megabytes(number * dense.bytes_per_value / 1e6) for number in counts[2:]]
    return TO_BE_SLICED.format(
        *map(count, counts),
        *weights,
        SLICED_GROWS if size["parameters"] > dense.parameters else "",
        **size,
    )


def sliced(history: Sequence[lrcore.Step]) -> str:
    """How narrow the stream became; nothing where it was not sliced."""
    step = lrcore.last_step(history, lrcore.Sliced)
    if step is None:
        return ""
    residual = step.residual_parameters
    return SLICED.format(
        SLICED_RESIDUAL.format(count(residual)) if residual else "", **step.fields_dict()
    )


def layers(numbers: Sequence[int]) -> str:
    return f"Layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def built_in_model(name: str) -> str:
    """A model of the list, told apart from the small ones that were trained for the page."""
    return name if name in lrcore.DEMO_MODELS else f"{name} · a real model"


def budget(name: str) -> str:
    return BUDGETS.get(name, name)


def budget_choice(name: str) -> str:
    """A kind of budget in a narrow list."""
    return METHODS_OWN if name == "auto" else budget(name)


def protocol(settings: dict) -> str:
    """The protocol as it stands by every perplexity, with the note of the model."""
    parts = [str(settings.get("source") or settings.get("data", "?"))]
    parts[0] += f" ({settings['part']})" if settings.get("part") else ""
    windows = settings.get("windows") or settings.get("samples") or "all"
    tokens = f" = {count(settings['tokens'])} tokens" if settings.get("tokens") else " tokens"
    parts.append(f"{windows} windows × {settings.get('seq_len') or 'up to 256'}{tokens}")
    name = settings.get("name") or settings.get("protocol") or "windows"
    if name != "windows":
        parts[0] += f" · {name}"
        parts += [f"stride {settings['stride']}"] if settings.get("stride") else []
    else:
        sampling, seed = settings.get("sampling", "first"), settings.get("seed")
        first = sampling == "first" or seed is None
        parts.append(f"{sampling} windows" if first else f"{sampling}, seed {seed}")
    parts += [settings["note"]] if settings.get("note") else []
    parts += [ON_CALIBRATION_TEXT] if settings.get("on_calibration_text") else []
    return " · ".join(parts)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "…"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return (
        f"{minutes} min {seconds:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )
