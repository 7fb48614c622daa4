"""Label and explanation of every field of the form."""

BEYOND = "{} is {}: the slider goes from {:g} to {:g}, so these are the ranks for {:g}."
NOT_POSITIVE = "{} is {}, and must be positive: these are the ranks by the rule of thumb."
FIELDS = {
    "model": ("Model", "built-in model, folder, .gguf file or hub id"),
    "revision": ("Revision", ""),
    "dtype": ("Data type", ""),
    "device": ("Device", ""),
    "offload": (
        "Offload layers to disk",
        "one at a time in memory: slower, for models larger than memory",
    ),
    "data": ("Calibration text", "built-in name, file, or hub data set name:config:split"),
    "samples": ("Windows", ""),
    "seq_len": ("Tokens per window", ""),
    "sampling": ("Windows drawn", ""),
    "seed": ("Seed", ""),
    "refit": (
        "Refit",
        "on: each layer makes up for what the compressed layers before it lost; trained: its MLP "
        "is then trained as well; auto: as the method does",
    ),
    "calibration": (
        "Calibration passes",
        "independent: every layer sees the dense model; sequential: the compressed layers before "
        "it",
    ),
    "method": ("Method", ""),
    "policy": ("Policy", ""),
    "ratio": ("Remove", "share of what the budget counts"),
    "budget": ("Budget", ""),
    "temperature": ("Temperature", "small: uneven ranks; large: uniform ranks"),
    "component_ratios": (
        "Component ratios",
        "share removed from single components, such as qk=0.3; the others meet the overall share",
    ),
    "rounding": ("Rounding", "down never exceeds the budget; nearest may"),
    "multiple": ("Ranks in multiples of", "1: any rank; 8 or 16 suit GPUs"),
    "target": ("Target", "only what it runs natively"),
    "rule": ("Temperature by rule of thumb", ""),
}
