"""Words of the Compress tab, of the Experiments tab and of jobs."""

COMPRESS_TAB, EXPERIMENTS_TAB = "Compress", "Experiments"

# One run
COMMAND = "The same as a command line"
COMPRESS_TO = "Compress to {}"  # of the size
FIND_SMALLEST = "Find the smallest size within +2 % perplexity"
RUN_NAME, RUN_NAME_HINT, START = "Run name", "generated automatically", "Start"
REMOVES = (
    "**{method}** will compress **{model}** by **{ratio:.1%}** of {budget}. Ranks are assigned by "
    "**{policy}**."
)
REMOVES_BYTES = (
    "**{method}** will compress **{model}** by **{ratio:.1%}** of {budget}. Ranks and bits are "
    "assigned by **{policy}**."
)
CALIBRATED = (
    "Calibration: {samples} {sampling} windows of {seq_len} tokens from {data}, seed {seed}."
)
AT_TEMPERATURE = " at temperature {:g}"
SIZE_CHANGE = "Model size: {} to {}. KV cache: {} to {} bytes per token."
MANUAL_RANKS = "Set manually: {}."
SEQUENTIAL = (
    "Sequential calibration repeats the calibration for each compressed layer, so it takes longer."
)
THEN_MEASURED = "Dense and compressed models are then measured: {}."
RUN_IS_KEPT = "The run is stored under Runs & export; the dense model does not change."
MEMORY = "Compression needs about {} of memory in addition to the dense model."
MEMORY_FREE = "Compression needs about {} of memory in addition to the dense model; {} are free."
MEMORY_SHORT = (
    "**This does not fit.** Use fewer or shorter calibration windows, refit off, independent "
    "calibration, a smaller data type, or close other programs."
)

# Download of a model from the hub
DOWNLOADS = "downloading {}"
DOWNLOAD_SIZE = "{}: {} to download, {} in memory as {}; {} are free."
DOWNLOAD_SUBJECT = "The weights of '{}', read as {}, were not downloaded: they"
DOWNLOAD_REMEDY = "Choose a smaller data type, offload layers to disk, or choose a smaller model."

# Measurement
MEASURE_AFTER = "Measure dense and compressed after compression"
MEASURED_TEXT, WINDOWS, WINDOW_TOKENS = "Text", "Windows", "Tokens per window"
PROTOCOL = "Protocol"
AS_CALIBRATED = "as calibrated"
MEASURED_TEXT_INFO = "its test split; for a calibration file, the held-out part at its end"
WINDOW_INFO = "0: 256, or the model's context if that is shorter"
PROTOCOL_INFO = "windows: as set here; other protocols fix length, joining and special tokens"

# Sweeps and tables of papers
EXPERIMENTS_HELP = (
    "Each result is a run like any other. It is measured as set under Compress, where the jobs are "
    "listed."
)
SWEEP = "Sweep: methods × policies × ratios × calibration texts as a job"
SWEEP_METHODS, SWEEP_POLICIES, SWEEP_TEXTS = "Methods", "Policies", "Calibration texts"
SWEEP_EMPTY = "empty: the value of the form; several: a run for each"
SWEEP_RATIOS_INFO = "fractions, separated by commas"
CROSS = "Measure on every calibration text"
CROSS_INFO = "cross-calibration study: two or more texts, all pairs"
START_SWEEP = "Start sweep"
NO_METHODS = "No method is selected for the sweep. Choose at least one."
NO_RATIOS = (
    "No ratio is given for the sweep. Enter numbers between 0 and 1, separated by commas, such as "
    "0.1, 0.2."
)
NOT_RATIOS = (
    "'{}' is not a list of ratios. Enter numbers between 0 and 1, separated by commas, such as "
    "0.1, 0.2."
)
TABLE = "Reproduce a paper's table or run a sweep file"
INCLUDED_TABLE = "Table of a paper"
TABLE_INFO = "as in `lrcore sweep NAME`, with the model chosen in the sidebar"
LOAD_SWEEP, START_TABLE = "Load sweep file", "Start table"
TABLE_ROWS = "{}: {} rows, each measured on {}"
MORE_ROWS = "and {} more"
NO_TABLE = "No table is chosen. Choose one, or load a sweep file."
SWEEP_TABLES = {"CSV": "table.csv", "JSON": "table.json", "Report": "report.html"}

# Layers, hidden size, shared bases
REDUCE = "Prune layers, slice the hidden size, or share bases between layers"
REDUCTION = "Compression"
PRUNE = (
    "**Prune layers.** The result is a dense model of the same family with fewer layers and a "
    "smaller KV cache."
)
LAYERS_TO_PRUNE, PRUNE_CRITERION, START_PRUNE = "Layers to prune", "Criterion", "Prune layers"
PRUNE_CRITERIA = {"influence": "Block Influence (ShortGPT)", "loss": "loss, one by one (SLEB)"}
INFLUENCE = "Block Influence of every layer"
PRUNES = (
    "{layers} would be pruned: Block Influence {least}, compared with at most {most:.3g}. Block "
    "Influence is 1 minus the mean cosine similarity between a layer's input and output; it is "
    "small if the layer changes little."
)
PRUNES_LATER = (
    "The job selects {count} of {layer_count} layers. In each step, it prunes the layer whose "
    "removal gives the lowest loss on calibration windows."
)
PRUNED_SIZE = " Parameters: {} to {}. Size: {} to {}. KV cache: {} to {} bytes per token{}."
EQUAL_LAYERS = ", if all layers have the same size"
SLICE = (
    "**Slice the hidden size** (SliceGPT). The residual stream is rotated to its principal "
    "components and the smallest ones are removed. The layers and the KV cache stay."
)
SLICE_RATIO = "fraction of the decoder parameters, after adding the matrices between bases"
SLICE_BASES, START_SLICE = "Bases", "Slice"
SLICE_BASES_INFO = "several bases need matrices between them"
ROTATIONS = {"block": "one before each attention and MLP", "one": "one for all layers"}
SLICES = (
    "Hidden size: {of} to {width}. Decoder parameters: {} to {}. All parameters: {} to {}. "
    "Size: {} to {}{}."
)
SLICE_GROWS = ": larger than before, because the head can no longer be tied to the embeddings"
SHARE = (
    "**Share bases** (Basis Sharing). In neighboring layers, the queries, keys, values, gate and "
    "up become low-rank pairs with a common `down` factor. The KV cache stays."
)
SHARE_RATIO = "fraction of the decoder parameters"
GROUP, GROUP_INFO = "Layers per basis", "1: a basis for each layer, as in SVD-LLM"
GROUP_RANGE = "'Layers per basis' is {}. Enter a whole number of at least 1."
START_SHARE = "Share bases"
SHARES = "Decoder parameters: {} to {} ({:.1%} fewer), with {} layers per basis."

# Automatic compression
TO_SIZE, SMALLEST = "Compress {} to {}", "Smallest size of {} within {} perplexity"
# Phases of the compression to a size
ANALYZE_PART, CHOICE_PART = "Analyze", "Choose the method"
COMPRESS_PART, MEASURE_PART = "Compress", "Compare"
PHASE = "Phase {} of {}: {}"
TRY = "size {} of at most {}"
FORM_CHOICE = "The method and policy of the form are used."
NOT_COMPARED = "Methods are not compared, because each measurement of this model takes long."
CANDIDATE = "{}, {}: {}"
NOT_SAMPLED, TAKES_LONG = "not measured", "not compared, because its measurements take long"
OTHER_BUDGET = "not compared, because its budget counts another quantity"
BEST = "{}, {} has the lowest perplexity on a small sample."
MEASURED_SIZE = "{:.1%} removed: {} perplexity"
NOTHING_WITHIN = (
    "No size within {} perplexity was found: removing {:.1%} changes it by {}. Choose another "
    "method or policy under Expert settings."
)

# Jobs
JOBS, NO_JOBS, CANCELING, READY = "Jobs", "No jobs yet.", "canceling…", "Ready"
ELAPSED, TIME_LEFT, QUEUED = "{} elapsed", "about {} left in this stage", "{} queued"
STEPS_LEFT = "about {} left in this part"
OTHERS_RUN = "A job of another browser is running; the Compress tab lists all jobs."
QUEUE_POSITION = "queued, {} before it"
DONE, DONE_IN = "done in {}", "in {}"
CANCEL, DISMISS, OPEN, COMPARE = "Cancel", "Dismiss", "Open", "Compare"
START_AGAIN, REMOVE = "Start again", "Remove"
LOG, TIMES_AND_LOG = "log", "times and log"
LOSS_CURVE = "cross-entropy at each step, nats per token"


def duration(seconds: float | None) -> str:
    """Return a duration as text; None: still unknown."""
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
