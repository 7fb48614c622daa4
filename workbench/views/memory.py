"""Estimated memory of a compression, and free memory."""

import lrcore
from lrcore.compression.solve.compress_layers import has_refit as lrcore_has_refit
from lrcore.compression.solve.distill import schedule_of
from lrcore.system.hardware import hardware

from .. import words
from ..base import numbers
from . import markup

LOGITS = 2**29  # bytes of logits that an evaluation keeps at once
# Copies of the numbers of a layer that is trained: the numbers at the start, the best and the
# present ones, a gradient and two moments of Adam.
TRAINING_COPIES = 6
# The same for all layers that are distilled: the numbers at the start and the present ones, a
# gradient and two moments.
DISTILLATION_COPIES = 5
# Bytes of activations in float32 per token, layer and number of the residual stream that a backward
# pass keeps: twice the 34 in 16 bits of Korthikanti et al. 2022.
ACTIVATIONS = 68


def needed(
    model: lrcore.LoadedModel,
    recipe: lrcore.Recipe,
    megabytes: float,
    evaluation: lrcore.EvaluationSettings | None,
) -> int:
    """Return the bytes that a compression needs in addition to the dense model.

    They hold the compressed tensors, hidden states of the calibration windows, and logits. A
    sequential calibration stores the states of the compressed layers. A refit also stores the
    states of the dense layers and the inputs of a dense MLP; if it trains, the numbers of a layer
    in float32, their gradients and the state of the optimizer; if it distills, those of all layers
    and the activations of a step. megabytes: size of the compressed model.

    Raises InputError if the recipe requires a refit that the architecture does not support.
    """
    config = model.network.config.get_text_config()
    has_refit = lrcore_has_refit(recipe, model.network)
    streams = 3 if has_refit else int(recipe.calibration_mode == "sequential")
    tokens = streams * recipe.samples * recipe.seq_len
    layer_input = getattr(config, "hidden_size_per_layer_input", 0)  # Gemma 4, per token
    parallel_states = getattr(config, "altup_num_inputs", 1)  # Gemma 3n
    width = parallel_states * config.hidden_size + config.num_hidden_layers * layer_input
    itemsize = model.network.dtype.itemsize
    states = tokens * width * itemsize
    training = _training(recipe, model, megabytes * 1e6 / itemsize) if has_refit else 0
    logits = 0
    if evaluation is not None:
        logits = min(LOGITS, 8 * (evaluation.seq_len or 256) * config.vocab_size * 4)
    return int(megabytes * 1e6) + states + training + logits


def _training(recipe: lrcore.Recipe, model: lrcore.LoadedModel, numbers: float) -> int:
    """Return the bytes that a refit needs for training. numbers: of the compressed model."""
    config = model.network.config.get_text_config()
    layers = config.num_hidden_layers
    if recipe.trains_layers:
        return int(TRAINING_COPIES * 4 * numbers / layers)
    schedule = schedule_of(recipe, model)
    if schedule is None:
        return 0
    activations = schedule.step_tokens * layers * config.hidden_size * ACTIVATIONS
    return int(DISTILLATION_COPIES * 4 * numbers) + activations


def device_line(model: lrcore.LoadedModel) -> str:
    """Return the data type of a loaded model, the device, and the free memory of the device."""
    device = hardware(str(model.device))
    parts = [model.dtype, f"{device.kind} {device.name}".strip()]
    if device.free is not None and device.total is not None:
        parts.append(words.spectra.FREE_MEMORY.format(device.free / 1e9, device.total / 1e9))
    return " · ".join(parts)


def device_bar(model: lrcore.LoadedModel) -> str:
    """Return HTML with `device_line` above a bar of the used memory, if the device has limits."""
    device, line = hardware(str(model.device)), markup.note(device_line(model), "device")
    if device.free is None or not device.total:
        return line
    used = numbers.percent(1 - device.free / device.total, 0)
    label = words.spectra.USED_MEMORY.format(device.kind, used)
    filled = f"<i style='width:{used}'></i>"
    return f"{line}<div class='memory-bar' role='img' aria-label='{label}'>{filled}</div>"


def sentence(required: int, free: int | None) -> str:
    """Return a sentence about the required bytes, and a remedy if they exceed the free bytes."""
    megabytes = numbers.megabytes(required / 1e6)
    if free is None:
        return words.compress.MEMORY.format(megabytes)
    estimate = words.compress.MEMORY_FREE.format(megabytes, numbers.megabytes(free / 1e6))
    return estimate if required < free else f"{estimate} {words.compress.MEMORY_SHORT}"
