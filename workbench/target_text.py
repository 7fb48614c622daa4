"""Words of targets: what will run the compressed model."""

import lrcore

WITH_CODE = "transformers"
COSTS = "At this budget perplexity is predicted to be {}; {} where any form may be used ({})."
COSTS_UNKNOWN = (
    "What that costs in perplexity is predicted once slots are probed: choose the policy probed. "
    "Or compress with the target and without, and compare the runs."
)

# What an export is, by the target that it is for
FORMATS = {
    "transformers": "folder with its code",
    "transformers-stock": "stock architecture, without code",
    "vllm": "folder for vLLM, with its code",
    "mla": "latent attention (youtu), without code",
    "llama.cpp": "GGUF file in f16",
}
FILE_NOT_PUSHED = "A GGUF file is not pushed: upload it with `hf upload`, or choose a folder."


def of_target(name: str) -> str:
    """What a target is, and what it runs natively."""
    target = lrcore.TARGETS[name]
    even = ", the same in all layers" if target.even else ""
    return f"{name} ({target.about}) runs {target.runs}{even}."
