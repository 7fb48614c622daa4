"""Words of the Compare tab and of the Runs & export tab."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore
from lrcore.system.path_access import strip_paths
from lrcore.system.settings import BOS

from ..base.numbers import count
from .spectra import short_name, window_order

COMPARE_TAB, RUNS_TAB = "Compare", "Runs & export"

# The compared runs
CHOOSE_RUNS = (
    "Up to six; the dense model is always included. The newest runs are listed here, all runs "
    "under Runs & export."
)
TOO_MANY_RUNS = "{} runs are selected, which is the maximum. Remove one before you add another."
NO_RUNS = (
    "No runs yet. Press Compress in the Allocation tab; each finished run appears here and stays "
    "after a restart."
)
NO_RUN_SELECTED = "No run is selected. Choose one above."
RUNS_DELETED = "The runs of this job have been deleted."
MEASURED_ON, AXIS = "Measured on", "Plotted against"
MEASURE_RUNS, MEASURE_SPEED = "Measure these runs", "Measure their speed"
MEASURE_DETAILS = "Measure components and task"
NOT_MEASURED, NOT_FINITE = "not measured", "not finite"
MEASURED_PERPLEXITY = "measured perplexity"
PERPLEXITY_CHANGE, PERPLEXITIES = "Perplexity change", "{}, dense {}"
STANDARD_ERROR = "standard error"
ON_CALIBRATION_TEXT = "on the calibration text"
OTHER_BASE = (
    "The files of the dense model have changed since this run was made, so the difference compares "
    "two models."
)
MEASURED_CAPTION = "{}, measured on {}, calibrated on {}"

# The chart
FEW_POINTS = (
    "Left: smaller. Down: lower loss. Click a point to select or deselect its run. Runs appear "
    "here after they are measured."
)
NO_SPEED = (
    "No run has a measured speed on this text. Select runs above and press Measure their speed."
)
FRONT = "Not dominated in size and perplexity: {}."
DOMINATED = " {} is dominated by {}."
MORE_DOMINATED = " {} more are dominated."
TIMES = "Times were measured{}, alternating with the dense model, which took {} per token."
NO_TIMES = (
    " Not shown, because no time was measured on this device: {}. Select runs and press Measure "
    "their speed."
)
AND_MORE = " and {} more"

# Differences
DIFFERENCES = "Differences between recipes, sizes and perplexities"
SELECT_TWO = "Select two to six runs to compare their recipes."
RECIPES_EQUAL = "These runs are equal in every field."

# Answers
ANSWERS, PROMPT, GENERATE, STOP = "Answers", "Prompt", "Generate", "Stop"
NEW_TOKENS, TEMPERATURE, TOP_P, SEED = "New tokens", "Temperature", "Top-p", "Seed"
MESSAGE, MESSAGE_PLACEHOLDER, SEND = "Message", "Ask all models the same question", "Send"
FIRST_MESSAGE, NEW_CHAT = "Why is the sky blue?", "New chat"
NO_MESSAGES = "Send a message to chat with the dense model and the selected runs side by side."
NO_MESSAGE = "The message is empty. Enter at least one word."
COPY, COPY_ANSWER = "Copy", "Copy the answer of {}"
LEGEND = "Gray: same as dense. Outlined: first difference. Color: change in loss."
NO_ANSWERS = "Press Generate: all models answer the prompt side by side."
ANSWER_SCALE = f"change in loss (nats). {LEGEND}"
TOKEN_SCALE = "change in loss compared with the dense model (nats)"
SAME_ANSWER = "Same answer as the dense model: {}."
SAME_UNTIL = "Same for {}"
ENDS_FIRST = ", then the {} answer ends."
DIFFERS = "then “{}” instead of “{}”"
DIFFERS_FIRST = "Differs from the first token: “{}” instead of “{}”"
CHANGE_AFTERWARDS = "; loss change {} nats/token."
PROMPT_SET = "A set of prompts: answers as a table"
PROMPTS, PROMPTS_INFO, ANSWER_ALL = "Prompts", "one per line", "Answer all"
NO_PROMPTS = "No prompts are given. Enter one per line."
AGREEMENT = "{}: {} of {} answers are the same as the dense model's"

# The report of a comparison
COMPARISON_REPORT, COMPARISON = "Report", "Comparison of {}"
CHAT, MEASUREMENTS, RECIPES = "Chat", "Measurements", "Recipes"
REPORT_PLOT, REPORT_PROTOCOL = "Perplexity against {}", "Protocol: {}"
REPORT_SAMPLING = "Sampling settings when the report was made"

# Losses of a text
TOKEN_LOSSES = "Loss, token by token"
TOKENS_HELP = (
    "Red: the compressed model has a higher loss at this token than the dense model; blue: lower. "
    "Hover over a token for the numbers (nats)."
)
PASSAGE_BOX, COLOR_TOKENS = "Text", "Color the tokens"
PASSAGE = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
    "sunshine with her friends."
)
MEAN_CHANGE = "{}: {:+.3f} nats per token"

# The table of runs
COMPARE_RUN, COMPARE_SELECTED = "Compare {}", "Compare selected"
SEARCH_RUNS, COLUMNS = "Search name, tags, base, method, policy, text", "Columns"
NO_MATCHING_RUNS = "No matching runs."
EARLIER_ROWS, LATER_ROWS = "Previous page", "Next page"

# A run
LOAD_SETTINGS, RECIPE, RANKS_CSV = "Load these settings", "Recipe", "Ranks CSV"
REPORT = "Report HTML"
NAME, TAGS, TAGS_INFO = "Name", "Tags", "separated by commas"
SAVE_LABELS, DELETE = "Save name and tags", "Delete"
FOLDER, MODEL_CARD = "Checkpoint folder", "Model card"
RESTORE = "Undo: restore {}"
NO_RANKS = (
    "This run has no ranks: its layers were pruned, its bases are shared, or its hidden size was "
    "sliced."
)
PRUNED = "{layers} pruned{order}, of {layer_count} layers counted from 0; selected by {by}."
IN_THIS_ORDER = " in this order"
SLICED = (
    "Hidden size: {of} to {width}. Decoder parameters to remove: {requested:.1%}; removed: "
    "{removed:.1%}{}."
)
SLICED_RESIDUAL = ", with {} of the remaining parameters in matrices between the bases"
SHARED = (
    "{group} neighboring layers share a basis. Decoder parameters to remove: {requested:.1%}; "
    "removed: {removed:.1%}."
)
HEALED = "Healed for {} steps on {}, {} tokens, in {}"
HEALED_PERPLEXITY = "; perplexity on {}: {} before, {} after"

# Quantizing and healing
QUANTIZE, BITS = "Quantize", "Bits"
QUANTIZE_HELP = (
    "Quantizes the weights to 2, 3, 4 or 8 bits, without data. The result is a separate run "
    "that is measured in the same way and can be selected in Compare. Each matrix is dequantized "
    "when it is used: memory and disk shrink, time does not."
)
HEAL, HEAL_STEPS = "Heal", "Steps"
HEAL_STEPS_INFO = "of {} windows of {} tokens"
LEARNING_RATE, LEARNING_RATE_INFO = "Learning rate", "latents tolerate ten times as much"
DISTILLATION_WEIGHT = "Weight of the distillation loss"
ROTARY_CHANNEL, ROTARY_CHANNEL_INFO = "Rotary channel", "only for care; 0: none"
HEAL_HELP = (
    "Fine-tunes the compressed matrices (the latents, for `care`) on the run's calibration text, "
    "with cross-entropy and distillation from the dense model. The result is a separate run that "
    "is measured in the same way. A stopped job resumes at its last step."
)

# Exports
EXPORT, FORMAT, EXPORTED_TO = "Export", "Format", "Exported to"
DOWNLOAD = "Download (zip)"
NOT_EXPORTED = "This run has not been exported in this format. Press Export first."
LINK_LEADS_OUT = (
    "'{}' contains a link to a path outside the export. Remove the link, or export the run again."
)
TICKET_EXPIRED = "This download has expired. Press Download on the page again."
LOADING_EXPORTS, EXPORT_HELP = (
    "How other programs load an export",
    "An export is a folder or a file next to the checkpoint. "
    "AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True) loads a folder with "
    "its code; a standard architecture loads without trust_remote_code. llama.cpp runs a GGUF "
    "file. Structures that a format does not support are multiplied out or filled with zeros; the "
    "job's log lists them.",
)
WITH_CODE = "transformers"
FORMATS = {  # target: label
    "transformers": "folder with its code",
    "transformers-stock": "standard architecture, without code",
    "vllm": "folder for vLLM, with its code",
    "mla": "latent attention (youtu), without code",
    "llama.cpp": "GGUF file in f16",
}
STANDARD_YES = "These ranks fit a standard architecture: the export needs no custom code."
STANDARD_NOT = "Not loadable as a standard architecture: {}."
STANDARD_WIDTH = (
    " A uniform MLP width of {} would be loadable, with all other matrices uncompressed."
)
STANDARD_SHORT = (
    "The model still has its standard architecture: the standard export needs no custom code."
)
STANDARD_UNKNOWN = (
    "This run does not record if its ranks fit a standard architecture. Export it to find out."
)
COMPATIBLE_RANKS = "Use compatible ranks"
PUSH, REPOSITORY, PRIVATE = "Push", "Repository", "Private"
PUSH_HELP = (
    "Exports the run in the format above and uploads the folder with the token of `hf auth login` "
    "or `HF_TOKEN`. Nothing is uploaded before you press Push."
)
NOT_A_REPOSITORY = "'{}' is not a repository name. Enter owner/name."
FILE_NOT_PUSHED = "A GGUF file cannot be pushed. Upload it with `hf upload`, or choose a folder."


def protocol(settings: Mapping[str, Any]) -> str:
    """Return the protocol of a perplexity: text, windows, sampling and notes."""
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
        parts.append(window_order(settings.get("sampling", "first"), settings.get("seed")))
        bos = settings.get("bos", BOS[0])
        parts += [f"bos {bos}"] if bos != BOS[0] else []
    parts += [settings["note"]] if settings.get("note") else []
    parts += [ON_CALIBRATION_TEXT] if settings.get("on_calibration_text") else []
    return " · ".join(parts)


def measured_caption(model: str, protocol_name: str, recipes: Sequence[lrcore.Recipe]) -> str:
    """Return the caption of a comparison: dense model, protocol, calibration texts and seeds."""
    seeds_by_text: dict[str, set[int]] = {}
    for recipe in recipes:
        seeds_by_text.setdefault(short_name(recipe.data), set()).add(recipe.seed)
    texts = [
        f"{data}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"
        for data, seeds in seeds_by_text.items()
    ]
    caption = MEASURED_CAPTION.format(short_name(model), protocol_name, " and ".join(texts))
    return strip_paths(caption)
