"""What compressing will take in memory beyond what is loaded, and whether there is so much."""

import lrcore

from . import memory_text, numbers

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
    compressed layers, a refit those of the dense ones as well and the inputs of a dense MLP, and
    where it trains those of the compressed one and what it should give. Raises InputError where
    the recipe demands a refit that the architecture cannot have.
    """
    config = model.network.config.get_text_config()
    refits = lrcore.refits(recipe, model.network)
    streams = 3 if refits else int(recipe.calibration == "sequential")
    streams += 2 * (refits and recipe.trains)
    tokens = streams * recipe.samples * recipe.seq_len
    own = getattr(config, "hidden_size_per_layer_input", 0)  # Gemma 4: each layer's, of each token
    streams_of = getattr(config, "altup_num_inputs", 1)  # Gemma 3n
    width = streams_of * config.hidden_size + config.num_hidden_layers * own
    states = tokens * width * model.network.dtype.itemsize
    logits = 0
    if evaluation is not None:
        logits = min(LOGITS, 8 * (evaluation.seq_len or 256) * config.vocab_size * 4)
    return int(megabytes * 1e6) + states + logits


def device_line(model: lrcore.LoadedModel) -> str:
    """The data type of a loaded model, what it computes on, and how much memory is free there."""
    device = lrcore.hardware(str(model.device))
    parts = [model.dtype, f"{device.kind} {device.name}".strip()]
    if device.free is not None and device.total is not None:
        parts.append(memory_text.FREE_OF.format(device.free / 1e9, device.total / 1e9))
    return " · ".join(parts)


def sentence(need: int, left: int | None) -> str:
    """The estimate in bytes, and what to change where it does not fit."""
    if left is None:
        return memory_text.MEMORY.format(numbers.megabytes(need / 1e6))
    known = memory_text.MEMORY_FREE.format(
        numbers.megabytes(need / 1e6), numbers.megabytes(left / 1e6)
    )
    return known if need < left else f"{known} {memory_text.MEMORY_SHORT}"
