"""Words of the Allocation tab and of the form's fields."""

import math

import lrcore
from lrcore.ranks.plan import RankPlan
from lrcore.recipes.targets import TARGETS

from ..base.numbers import count
from .spectra import source_caption

# Fields of the form: (label, explanation)
FIELDS = {
    "model": ("Model", "built-in model, folder, .gguf file or hub id"),
    "revision": ("Revision", ""),
    "dtype": ("Data type", ""),
    "device": ("Device", ""),
    "offload": (
        "Offload layers to disk",
        "one layer at a time in memory: slower, for models larger than memory",
    ),
    "data": ("Calibration text", "built-in name, file, or hub data set name:config:split"),
    "samples": ("Windows", ""),
    "seq_len": ("Tokens per window", ""),
    "sampling": ("Window sampling", ""),
    "seed": ("Seed", ""),
    "bos": ("Beginning-of-text token", "before each window; auto: as the tokenizer does"),
    "refit": (
        "Refit",
        "on: each layer compensates for the error of the compressed layers before it; trained: "
        "each layer is then trained; distilled: all layers are trained together at the end; "
        "auto: the method's default, with a short training of all layers after measured ranks",
    ),
    "calibration_mode": (
        "Calibration passes",
        "independent: inputs from the dense model; sequential: inputs from the compressed layers "
        "before each layer",
    ),
    "method": ("Method", ""),
    "policy": ("Policy", ""),
    "ratio": ("Size reduction", "fraction"),
    "budget": ("What shrinks", ""),
    "temperature": ("Temperature", "Low: uneven ranks. High: nearly uniform."),
    "component_ratios": (
        "Component ratios",
        "fractions to remove from single components, such as qk=0.3; the remaining components "
        "are adjusted to meet the total",
    ),
    "rounding": ("Rounding", "down never exceeds the budget; nearest may"),
    "rank_multiple": ("Ranks in multiples of", "1: any rank; 8 or 16 suit GPUs"),
    "target": ("Target", "limits ranks to what this runtime supports"),
    "rule": ("Automatic temperature", ""),
}
OUT_OF_RANGE = "{} is {}, outside the range {:g} to {:g}; the plan uses {:g}."
NOT_POSITIVE = "{} is {}, but must be positive; the plan uses the automatic temperature."
METHOD_DEFAULT = "Method default"
BUDGETS = {
    "auto": "the part that the method compresses",
    "params": "decoder parameters",
    "all_params": "all parameters",
    "kv": "KV cache",
    "both": "decoder parameters and KV cache",
    "flops": "compute per token",
    "latency": "latency",
    "bytes": "bytes of the model",
}
BYTES_CHOICE = "bytes of the model, by ranks and bits"
BYTES_POLICY = (
    "Policy probed chooses the ranks and the bits together. Policy uniform keeps all ranks and "
    "chooses the bits only."
)
# log-slider.js reads the number after AUTOMATIC, and adds LOGARITHMIC to the slider's label.
AUTOMATIC, LOGARITHMIC = "Automatic:", ", logarithmic"
TEMPERATURE_INFO = f"Low: uneven ranks. High: nearly uniform. {AUTOMATIC} {{:.3g}}"
TEMPERATURE_UNIFORM = f"Low: uneven ranks. {AUTOMATIC} {{:g}} (nearly uniform ranks)"
CHOSEN = "{}, {} ranks; shrinks {}"
OPTIONS, OPTIONS_OF = "Options", "Options of {}"
NOTES = "implementation notes"

# Size and cost
CONTEXT, TOKENS = "Tokens in the cache", "{} tokens"
CACHE, LAYER_TIME = "KV cache, {} tokens", "latency per token"
STATES = "states per sequence"

# Predicted and measured perplexity
CHANGE_PREDICTED, ACTUAL = "perplexity change, predicted", "perplexity change, actual"
ENERGY_INFO = "Mean over components, each compressed alone, on calibration text"
PREDICTED_RANGE = "90 % interval {} to {}, on the test split of the calibration data{}"
CHANGE_RANGE = "90 % interval {} to {} on {} tokens{}"
PREDICTED_POINT = (
    "on calibration text{}, from probes of single components; optimistic at high compression"
)
NOT_PREDICTED = "no prediction"
NOT_PREDICTED_INFO = "These ranks are too far from the measured plans."
DISTILLS = (
    "At the end, a short training of all layers lowers the perplexity further; the perplexities "
    "here are without it."
)
NOT_PREDICTED_TRAINED = "The prediction does not cover the training of the layers."
PROBED_ON_CALIBRATION = "; probed on calibration windows, because the text has too few others"
DRAFT = (
    "These ranks are predicted by {}. They are measured before they are used; if they are worse "
    "than uniform ranks, uniform ranks are used."
)
WITH_UNIFORM = "with uniform ranks"
PERPLEXITIES = "perplexity {}, dense {}"
UNIFORM_INFO = "Same method and budget, equal fraction in every layer"
WITH_EQUAL_BITS = "with equal bits"
EQUAL_BITS_INFO = "Full ranks, the same number of bits in every layer"
WORSE = "Worse than {} by {} ± {}"
BETTER = "Better than {} by {} ± {}"
UNIFORM_RANKS, EQUAL_BITS = "uniform ranks", "equal bits"
USE_UNIFORM = "Use uniform ranks ({} instead of {})"
USE_EQUAL_BITS = "Use equal bits ({} instead of {})"
NO_DIFFERENCE = "No significant difference from {} ({} ± {})"
NOT_HELD_OUT = "Measured on calibration text, so not comparable. A longer file has a held-out part."
MEASURING, MEASURED_ON = "measuring…", "compressed in memory, on a small held-out sample"
NOT_FINITE = "The loss is not finite."
MORE_TOKENS = count(8192)  # MORE_WINDOWS * LENGTH of state/live.py
MEASURE_MORE = f"Measure on {MORE_TOKENS} tokens"
TOO_LARGE = f"This model is too large to measure at every move. Press '{MEASURE_MORE}'."
MEASURES_MORE = f"measuring {MORE_TOKENS} tokens…"

# Evidence that is measured on request
# {0}: policy or budget that needs the measurements, {1}: policy of the displayed ranks
MEASURE_FIRST = (
    "{0} assigns ranks from measurements of this model. Until they are available, the ranks of {1} "
    "are drawn pale."
)
TIME_FIRST = (
    "A latency budget needs the time of each layer at each rank on this machine. Until it is "
    "measured, the budget counts parameters, and the ranks of {1} are drawn pale."
)
BYTES_FIRST = (
    "A budget of bytes needs the loss of each component in few bits. Until it is measured, the "
    "budget counts parameters, and the ranks of {1} are drawn pale."
)
MEASURES_NOW = "Measurements for {0} are running (see above). Until they end: the ranks of {1}."

# The bars
BARS = "Highest rank share: layer {} · {} ({}); lowest: layer {} · {} ({})."
INFLUENCES = "Block Influence of layer {}: {}, of layer {}: {}."
CUT = (
    "No measurement supports so low a rank; the policy probed measures the loss of each component."
)
RANKS_OF = "ranks of {}"
LOSS_ALONE = "{} nats/token, this component alone"
ENERGY_LOST = "{} of its energy lost"
UNIFORM_RANK, PINNED_RANK = "uniform rank {}:", "pinned rank {}:"
UNIFORM_BARS = "Uniform ranks: equal shares."
BITS_PLAN = "Components: {}; {} of {} are below full rank."
COMPONENTS_IN, COMPONENTS_PLAIN = "{} in {} bits", "{} not quantized"
BITS_OF, NOT_QUANTIZED = "{} bits", "not quantized"
UNIFORM_TIMES = (
    "Each component gives up the same share of its time, and some lose most of their parameters, "
    "which can ruin the model. The policy probed measures the loss."
)
LINK, LINK_HELP = "Copy link", "Copies a link to this plan, slot and tab."
LINK_COPIED, LINK_NOT_COPIED = "Link copied", "Not copied. Copy it from the address bar."

# The pinned plan
PIN, UNPIN = "Pin", "Unpin"
PINNED_PLAN = "{method}, {policy}, {ratio}"
PINNED_PREDICTED = "pinned: perplexity change, predicted"
PINNED_MEASURED = "pinned: perplexity change, actual"
PREDICTED_CHANGE = "{plan} · this plan: {change}"
MEASURED_CHANGE = "this plan: {} ± {} on the same tokens"
PINNED_BARS = "Gray: pinned plan ({plan}). Δ: change in rank from it, {ends}."
RANK_GAIN = "up to {2} (layer {0} · {1})"
RANK_LOSS = "down to {2} (layer {0} · {1})"
SAME_RANKS = "The pinned plan has the same ranks."
OTHER_BITS = "The pinned plan has the same ranks, but other bits in {} of {} components."
OTHER_SLOTS = "The pinned plan ({plan}) has different components. Gray: uniform ranks."

# Ranks set manually
SLOT = "Rank of layer {} · {}"
SLOT_INFO = "of {} (policy: {})"
SLOT_INFO_BITS = "of {}, {}"
HANDLE = "Drag, or press the arrow keys, to set this rank manually. Click another bar to select it."
UNDO, REDO, RELEASE, CLEAR = "Undo", "Redo", "Reset to policy", "Clear all"
MANUAL_CHANGES = (
    "Changes from the policy: {hand} set manually, {others} adjusted to keep the budget. "
    "Predicted energy kept: {before} → {after}."
)
RANKS_REMOVED = (
    "The manual ranks of {previous} do not apply to {method}. They return if you choose {previous} "
    "again."
)
RANKS_TABLE = "Ranks by layer, and manual ranks"
RANKS_HELP = (
    "Type a rank into the table, or drag the handle on a bar, to set a rank manually. The policy "
    "divides the remaining budget among the remaining slots."
)
DOWNLOAD_RANKS = "Download ranks CSV"
ANOTHER_FORM = "another form"
OTHER_FORM = (
    "Layer {layer} stores its {part} in a form other than {form}. To choose {form}, give {name} a "
    "rank in the rank_overrides of a recipe."
)

# Perplexity against budget
BUDGET_CURVE, HOW_TO_READ = "Perplexity against budget", "How to read this figure"
NO_PREDICTION = "No prediction yet."
MEASURE_CURVE = "Measure curve"
CURVE_RUNNING = "The measurements for the curve are running. It will appear here."
BUDGET_CURVE_HELP = (
    "Predicted perplexity of this method and policy at each budget, with a 90 % interval. Dotted: "
    "the dense model. Thin: uniform ranks (gray) and other measured methods. Click a point to set "
    "the budget."
)
BUDGET_CURVE_RUNS = " Orange: runs of this model and method (filled: this policy), measured on {}."

# The live continuation
CONTINUATION, PROMPT_BOX = "Live continuation", "Prompt"
PROMPT = "One morning, Tom went to the"
PROMPT_CUT = (
    "The prompt has {} characters; the live continuation uses the first {}. For the complete "
    "prompt, compress and press Generate in the Compare tab."
)
CONTINUATION_WAITS = "The continuations appear once the ranks are measured."
CONTINUATION_EMPTY = "Type a prompt. The continuations appear once the ranks are measured."
DENSE, COMPRESSED = "dense", "compressed"

# The network diagram
NETWORK = "Network diagram"
NETWORK_HELP = (
    "Each block is a component of a layer; the first layer is at the bottom. The area shows the "
    "parameters, or the KV cache or the bytes if the budget counts them: gray is removed, color "
    "remains. Hover over a block for details; click a block to select it."
)
PARAMETERS, CACHED_BYTES, STORED_BYTES = "parameters", "bytes of KV cache per token", "bytes"

# Another model
WHAT_IF = "Apply these ratios to another model"
WHAT_IF_MODEL, WHAT_IF_CONFIG = "Model", "Or its config.json"
WHAT_IF_CONFIG_INFO = "paste the file; it replaces the model chosen here"
WHAT_IF_HELP = (
    "Each layer of {model} ({layers} layers) gets the ratios of this plan's layers at the same "
    "relative depth. Sizes are for bfloat16, without activations; quality is not estimated."
)
WHAT_IF_CONTEXT_RANGE = "'Tokens in the cache' is {}. Enter a whole number of at least 1."
WHAT_IF_UNCHANGED = " This model has no {}; the plan's ratios for it have no effect."
WHAT_IF_BITS = "The bits of this plan are not applied: only its ratios of parameters are."
WHAT_IF_NOT_JSON = "The pasted text is not valid JSON ({}). Paste a complete config.json."
WHAT_IF_NOT_OBJECT = "The pasted text is not a JSON object. Paste a complete config.json."
WHAT_IF_COLUMNS = ("", "dense", "with these ratios")
WHAT_IF_PARAMETERS, WHAT_IF_WEIGHTS = "parameters", "weights"
WHAT_IF_CACHE, WHAT_IF_TOTAL = "KV cache of {} tokens", "total"
WHAT_IF_FITS, YES, NO = "fits in {} GB", "yes", "no"

# Every policy
POLICIES = "Every policy, layer by layer"
MEASURE_ALL = "Measure all methods"
POLICIES_HELP = (
    "Blue: the chosen policy. Hover over a gray line for its name. Where the lines differ, the "
    "choice of a policy matters; where they meet, it hardly matters."
)
NOT_FACTORIZED = "Not factorized yet: {}."
BUDGET_REFUSED = "Cannot meet this budget: {}."
LOWEST = "Lowest perplexity measured at this budget, on the same small held-out sample: {} with {}."
ABOVE_LOWEST = " {} with {} (this plan) is {} above it."
RANKED_ON_CALIBRATION_TEXT = (
    "Measured on calibration text, because the file is too short for a held-out part. The order "
    "means little."
)

# The target
TARGET_COST = "Predicted perplexity at this budget: {}; without a target: {} ({})."
TARGET_COST_UNKNOWN = (
    "The cost in perplexity is predicted once the slots are probed: choose the policy probed. Or "
    "compress with and without the target and compare the runs."
)
TARGET_COST_UNPREDICTED = (
    "The cost in perplexity cannot be predicted: these ranks are too far from the measured plans."
)

# Files of a figure
SAVE = "Save"
FILES = (  # format, width in millimeters, label
    ("pdf", "85", "PDF · one column, 85 mm"),
    ("pdf", "178", "PDF · two columns, 178 mm"),
    ("svg", "85", "SVG · one column, 85 mm"),
    ("svg", "178", "SVG · two columns, 178 mm"),
    ("png", "85", "PNG, 300 dpi · 85 mm"),
    ("png", "178", "PNG, 300 dpi · 178 mm"),
    ("csv", "", "CSV · the numbers"),
)
PLAN_CAPTION = "{method}, {policy}, {ratio:.1%} of {budget} removed"
EVERY_POLICY = "Fraction retained by each policy, {ratio:.1%} removed"


def run_button(seconds: float | None) -> str:
    """Return the label of the button that starts a measurement. seconds None: unknown duration."""
    return "Run" if seconds is None else f"Run ({approximate_time(seconds)})"


def approximate_time(seconds: float) -> str:
    """Return a duration estimated from a sample, rounded up to the digits that are certain."""
    if seconds < 50:
        return f"about {max(5, 5 * math.ceil(seconds / 5))} s"
    minutes = math.ceil(seconds / 60)
    if minutes >= 90:
        return f"about {seconds / 3600:.0f} h"
    return f"about {minutes if minutes < 10 else 5 * math.ceil(minutes / 5)} min"


def budget(name: str) -> str:
    """Return the quantity that a budget counts, in lower case for the middle of a sentence."""
    return BUDGETS.get(name, name)


def budget_choice(name: str) -> str:
    """Return the label of a budget in the list of choices."""
    return {"auto": METHOD_DEFAULT, "bytes": BYTES_CHOICE}.get(name) or budget(name)


def bits(number: int) -> str:
    """Return the precision of a component; 0 bits: not quantized."""
    return BITS_OF.format(number) if number else NOT_QUANTIZED


def describe_target(name: str) -> str:
    """Return a sentence about a target and the structures that it runs natively."""
    target = TARGETS[name]
    uniform = ", with the same ranks in all layers" if target.even else ""
    return f"{name} ({target.about}) runs {target.runs}{uniform}."


def plan_caption(recipe: lrcore.Recipe, budget_name: str) -> str:
    """Return the source of a figure of a plan: method, policy, budget, model and text."""
    fields = recipe.to_dict() | {"budget": budget(budget_name)}
    return source_caption(recipe, PLAN_CAPTION.format(**fields))


def plan_status(plan: RankPlan, policy: str, is_draft: bool) -> str:
    """Return a sentence about ranks that compression may not use; "" if it uses them.

    is_draft: see `Store.is_draft`.
    """
    return DRAFT.format(policy) if is_draft else plan.account.planned.uniform_notice(policy)
