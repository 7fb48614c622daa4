"""Healing: short training of a compressed model towards the dense model (CARE, section 3.5).

    L = L_CE + beta tau^2 L_KD, L_KD = mean over tokens of KL(softmax(z_dense / tau) | softmax(z /
    tau)) (eq. 6-8)

With method `care`, the latents W^a and W^b of keys and values are trained; with each other method,
all matrices that compression changed, with their biases; in a model with dropped layers, all
parameters. All other parameters are frozen. With "lora", low-rank adapters are trained instead and
merged, see `lora`. Quantized matrices are trained through their rounding, see `straight_through`.
With rotary positions, `rotary_channel` adds a decoupled channel of that width to each layer whose
keys are latents (W_Q^R small and random, W_K^R zero, so that the model starts unchanged) and trains
it as well. The paper divides the scores by sqrt(d_h + d_r); here they keep the scale that the
queries and keys were trained with.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....checkpoints.checkpoint import load
from ....data import (
    Windows,
    apart_from,
    load_test_texts,
    load_texts,
    make_windows,
    overlapping,
)
from ....evaluation.evaluate import batches, evaluate
from ....evaluation.evaluation_settings import EvaluationSettings
from ....layers.account import SizeAndCost
from ....models.architectures import decoder_layers
from ....models.layers import clone
from ....models.load import LoadedModel
from ....models.model_size import count_flops
from ....recipes.history import Healed, LayersDropped, Step
from ....recipes.recipe import Recipe
from ....system.as_json import json_text
from ....system.errors import InputError, ResourceError, quoted
from ....system.progress import Progress, silent
from ...step_rules import check_may_follow, steps_since_compression
from ..step_settings import LORA, Healing
from .distillation import Descent, Terms, terms
from .lora import add_adapters, merge_adapters
from .straight_through import restore_quantized, use_straight_through
from .trainable import (
    DenseReference,
    add_rotary_channel,
    make_trainable,
    remaining_layers,
    trainable_parameters,
)


def heal(
    model: LoadedModel,
    data: str | Healing | None = None,
    *,
    teacher: str | LoadedModel | None = None,
    state: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> LoadedModel:
    """Return a compressed model with trained factors; the model itself is unchanged.

    The keyword arguments in `settings` are the fields of `Healing`. teacher: the dense model, or
    its current path; None for the model that the recipe names. Without data the model is trained on
    its calibration text. state: a file that is written every 50 steps and from which the same
    healing resumes; the caller deletes it. On a CPU the same seed gives the same model, interrupted
    or not.

    The history gains `Healed`: settings, protocol, number of trained parameters, seconds, first and
    last loss, perplexity before and after, and L_CE and L_KD of each step. The account counts a
    new channel.

    Raises InputError for a model that is not compressed, for a wrong teacher, if there is nothing
    to train or no text, and if a loss is not finite.
    """
    chosen = data if isinstance(data, Healing) else Healing(data, **settings)
    progress = progress or silent
    teacher, text = find_teacher(model, teacher), chosen.data or _training_text(model)
    chosen = replace(chosen, data=text, train=_resolve_train(chosen.train, model))
    model.check_length(chosen.seq_len)
    texts = load_texts(text)
    windows = make_windows(
        texts, model.tokenizer, chosen.samples, chosen.seq_len, "random", chosen.seed
    )
    network, score = clone(model.network), _scorer(chosen, windows, progress)
    parameters = _prepare_training(network, teacher.network, chosen, model.history)
    made = replace(model, name=f"{model.name} healed", network=network)
    before = score(model)
    key = _key(model, teacher, chosen, windows)
    state, rates = Path(state) if state else None, [chosen.lr] * len(parameters)
    descent = Descent(parameters, rates, chosen.steps, state, key)
    try:
        losses = descent.run(
            _parts(made, teacher, windows, chosen), chosen.beta * chosen.temperature**2, progress
        )
    finally:
        network.requires_grad_(False)
        merge_adapters(network, chosen.train)
        restore_quantized(network)
    step = Healed(
        **asdict(chosen) | _loss_report(chosen, losses),
        teacher=teacher.name,
        protocol=windows.protocol,
        trained_parameters=sum(parameter.numel() for parameter in parameters),
        seconds=round(descent.seconds, 3),
        test_protocol=before.get("protocol"),
        perplexity_before=before.get("perplexity"),
        perplexity_after=score(made).get("perplexity"),
    )
    history, account = (*model.history, step), _account(model, made)
    return replace(made, fingerprint=key, history=history, account=account)


def _prepare_training(
    network: PreTrainedModel, dense: PreTrainedModel, chosen: Healing, history: Sequence[Step]
) -> list[nn.Parameter]:
    """Return the parameters to train, as parameters of this network only.

    Quantized matrices get trainable numbers; a rotary channel is added if the settings request it.
    """
    steps = steps_since_compression(history)  # the teacher is the model before them
    use_straight_through(network, fixed_grids=any(step.fixes_grids for step in steps))
    remaining = remaining_layers(steps, len(decoder_layers(dense)))
    if chosen.rotary_channel:
        add_rotary_channel(network, chosen.rotary_channel, chosen.seed)
    if chosen.train in LORA:
        return add_adapters(network, chosen.train, chosen.lora_rank, chosen.lora_alpha, chosen.seed)
    return make_trainable(
        network, trainable_parameters(network, DenseReference(dense, remaining), chosen.train)
    )


def _key(model: LoadedModel, teacher: LoadedModel, chosen: Healing, windows: Windows) -> str:
    """Return the fingerprint of a healing; it does not depend on the paths of texts."""
    settings = {
        name: value for name, value in asdict(chosen).items() if name not in ("data", "test")
    }
    identity = json_text(
        [model.fingerprint, teacher.fingerprint, settings, windows.key, model.dtype]
    )
    return hashlib.sha256(identity.encode()).hexdigest()


def find_teacher(
    model: LoadedModel, teacher_or_path: str | LoadedModel | None = None
) -> LoadedModel:
    """Return the dense model of a compressed model, on the same device and in the same dtype.

    Raises InputError if it is missing or different, and for a model that cannot be healed.
    """
    check_may_follow(Healed, model.history, model.name)
    if model.offloaded:
        raise InputError(
            f"The layers of '{model.name}' are offloaded, but training needs them in memory. Load "
            "it without offload."
        )
    recipe, dense = model.recipe, model.base
    assert dense is not None  # each derived model has a base
    if isinstance(teacher_or_path, LoadedModel):
        teacher = teacher_or_path
    else:
        base, revision = (recipe.model, recipe.revision) if recipe else (dense.name, None)
        base, revision = (base, revision) if teacher_or_path is None else (teacher_or_path, None)
        try:
            teacher = load(base, revision, model.dtype, str(model.device))
        except ResourceError:
            raise
        except InputError as error:
            named = quoted(str(teacher_or_path or base))
            raise InputError(
                f"The dense model of '{model.name}', {named}, cannot be loaded as teacher: {error} "
                "If it has moved, enter its path (--teacher)."
            ) from error
    if teacher.fingerprint != dense.fingerprint:
        raise InputError(
            f"'{teacher.name}' is not the dense model of '{model.name}': the fingerprint of its "
            "files differs. Use the original as teacher (--teacher), or compress again."
        )
    return teacher


def _training_text(model: LoadedModel) -> str:
    """Return the text that a model was compressed by, or last calibrated on.

    Raises InputError without such a text.
    """
    if model.recipe is not None:
        return model.recipe.data
    read = [getattr(step, "calibration", {}).get("source") for step in model.history]
    named = [data for data in read if data]
    if not named:
        raise InputError(
            f"'{model.name}' was compressed without text. Name a text to train on (--data), such "
            "as stories."
        )
    return str(named[-1])


def _resolve_train(train: str, model: LoadedModel) -> str:
    """Return the part of a model to train, which "auto" determines from the history."""
    if train != "auto":
        return train
    if all(isinstance(step, LayersDropped | Healed) for step in model.history):
        return "all"  # no remaining number was changed
    latents = model.recipe is not None and model.recipe.method == "care"
    return "latents" if latents else "factors"


def _parts(
    student: LoadedModel, teacher: LoadedModel, windows: Windows, chosen: Healing
) -> Callable:
    """Return a function from a step to the pieces of its batch, small enough for the logits."""
    generator, count = torch.Generator().manual_seed(chosen.seed), chosen.steps * chosen.batch
    rounds = -(-count // len(windows.tokens))
    order = torch.cat(
        [torch.randperm(len(windows.tokens), generator=generator) for _ in range(rounds)]
    )[:count].view(chosen.steps, -1)

    def compute(part: Tensor) -> Terms:
        inputs, targets = part[:, :-1], part[:, 1:]
        with torch.no_grad():
            teacher_logits = (
                teacher.network(input_ids=inputs, use_cache=False).logits if chosen.beta else None
            )
        logits = student.network(input_ids=inputs, use_cache=False).logits
        return terms(logits, teacher_logits, targets, chosen.temperature)

    def parts(step: int) -> list[tuple[float, Callable[[], Terms]]]:
        pieces = batches(student, windows.tokens[order[step]], chosen.batch)
        return [(len(piece) / chosen.batch, partial(compute, piece)) for piece in pieces]

    return parts


def _scorer(
    chosen: Healing, windows: Windows, progress: Progress
) -> Callable[[LoadedModel], dict[str, Any]]:
    """Return a function that evaluates a model on text that it is not trained on.

    It returns an empty mapping without such a text.
    """
    if not chosen.test_samples:
        return lambda model: {}
    trained_on = {windows.protocol["fingerprint"]}
    texts = apart_from(load_test_texts(chosen.test or chosen.data or ""), trained_on)
    if overlapping(texts) & trained_on:
        return lambda model: {}
    test = EvaluationSettings(texts.source, chosen.test_samples, chosen.seq_len)
    return lambda model: evaluate(model, test, batch=chosen.batch, progress=progress).to_dict()


def _loss_report(chosen: Healing, losses: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the fields of `Healed` about the losses, and None for settings that were not used.

    The losses are L of eq. 8 at the first and last step, and the two terms at each step.
    """
    first, last = (
        entropy + chosen.beta * chosen.temperature**2 * divergence
        for entropy, divergence in (losses[0], losses[-1])
    )
    entropy, divergence = (
        [round(value, 6) for value in part] for part in zip(*losses, strict=True)
    )
    tokens = chosen.steps * chosen.batch * (chosen.seq_len - 1)
    adapters = {} if chosen.train in LORA else {"lora_rank": None, "lora_alpha": None}
    return adapters | {
        "tokens": tokens,
        "first_loss": first,
        "last_loss": last,
        "cross_entropy": tuple(entropy),
        "divergence": tuple(divergence),
    }


def _account(model: LoadedModel, healed: LoadedModel) -> SizeAndCost:
    """Return the account with the parameters, bytes and work of a new channel.

    The predicted perplexity is removed, because it is no longer valid.
    """
    assert model.account is not None  # each derived model has an account
    account = model.account.without_prediction()
    added = healed.size.parameters - model.size.parameters
    if not added:
        return account
    extended = replace(
        account.model,
        parameters=account.model.parameters + added,
        decoder_parameters=account.model.decoder_parameters + added,
        bytes=account.model.bytes + added * healed.network.dtype.itemsize,
        flops_per_token=count_flops(healed.network, (model.recipe or Recipe()).seq_len),
    )
    return replace(account, model=extended)
