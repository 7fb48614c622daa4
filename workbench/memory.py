"""What compressing will take in memory beyond what is loaded, and whether there is so much."""

from contextlib import suppress
from pathlib import Path

import lrcore

from . import text

LOGITS = 2**29  # bytes of logits that an evaluation keeps at once


def needed(
    model: lrcore.LoadedModel,
    recipe: lrcore.Recipe,
    megabytes: float,
    evaluation: lrcore.EvaluationSettings | None,
) -> int:
    """Bytes: the compressed tensors (the rest is shared with the dense model), hidden states of the
    calibration windows, logits.

    megabytes: what the plan's model weighs. A sequential calibration keeps the states of the
    compressed layers, a refit those of the dense ones as well. Raises InputError where the recipe
    demands a refit that the architecture cannot have.
    """
    config = model.network.config.get_text_config()
    refits = lrcore.refits(recipe, model.network)
    streams = 2 if refits else int(recipe.calibration == "sequential")
    tokens = streams * recipe.samples * recipe.seq_len
    states = tokens * config.hidden_size * model.network.dtype.itemsize
    logits = 0
    if evaluation is not None:
        logits = min(LOGITS, 8 * (evaluation.seq_len or 256) * config.vocab_size * 4)
    return int(megabytes * 1e6) + states + logits


def check(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> None:
    """Raise InputError where the hidden states of the calibration windows alone take more memory
    than is free on the model's device.
    """
    config, left = model.network.config.get_text_config(), free(str(model.device))
    states = recipe.samples * recipe.seq_len * config.hidden_size * model.network.dtype.itemsize
    if left is not None and states > left:
        raise lrcore.InputError(
            f"{recipe.samples:,} windows of {recipe.seq_len:,} tokens take "
            f"{text.megabytes(states / 1e6)} of memory for hidden states; "
            f"{text.megabytes(left / 1e6)} are free. Use fewer or shorter windows."
        )


def free(device: str) -> int | None:
    """Bytes that are free on the model's device; None where nobody says, as for a device of its
    own memory.
    """
    if device != "cpu":
        return None
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * int(
            next(line for line in lines if line.startswith("MemAvailable")).split()[1]
        )
    return None


def sentence(need: int, left: int | None) -> str:
    """The estimate in bytes, and what to change where it does not fit."""
    if left is None:
        return text.MEMORY.format(text.megabytes(need / 1e6))
    known = text.MEMORY_FREE.format(text.megabytes(need / 1e6), text.megabytes(left / 1e6))
    return known if need < left else f"{known} {text.MEMORY_SHORT}"
