"""The methods on models that nothing was tuned on: trained here, on WikiText-2, then compressed."""

import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from train_demo import learning_rate, optimiser
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import lrcore

from .page import ROOT, Subject, note, table, write_section
from .quality import Cells, evaluation, keep, measure, read_record

SEEDS, RATIOS, POLICIES = (0, 1, 2), (0.1, 0.3, 0.5), ("uniform", "probed")
VOCABULARY, CONTEXT = 2048, 256
BATCH, STEPS, RATE = 16, 700, 3e-3  # windows of CONTEXT tokens: 2.9 million in all
WIDTH, LAYERS, HEADS = 128, 4, 4
FOLDER = ROOT / ".train" / "fresh"
Cell = dict[str, Any]


def fresh(only: list[str]) -> None:
    """Train what is not there, measure the cells that the record lacks, write the tables after
    every model. A killed run goes on with the model or the method that it was at.
    """
    reference = os.environ.get("LRCORE_REFERENCE")
    if only:
        return
    if not reference:
        note("fresh models are left out: LRCORE_REFERENCE does not name the reference data.")
        return
    record, text = read_record(), Path(reference) / "text"
    for architecture in ARCHITECTURES:
        for seed in SEEDS:
            own = record.setdefault(f"fresh {architecture} {seed}", {"cells": {}})
            fill(own, subject(trained(architecture, seed, text), text), lambda: keep(record))
            names = [f"fresh {architecture} {number}" for number in SEEDS]
            done = [record[name] for name in names if name in record]
            write_section(f"fresh {architecture}", section(architecture, done))


def fill(own: Cell, one: Subject, save: Callable[[], None]) -> None:
    """The dense perplexity and the cells of a model that are not in its entry of the record."""
    model = lrcore.load(one.recipe.model)
    dense = evaluation(model, one)
    own["dense"] = dense.perplexity
    wanted = Cells(policies=POLICIES, missing=True, ratios=RATIOS)
    for method in (row["name"] for row in lrcore.methods()):
        recipes = wanted.recipes(one.recipe, method, tuple(own["cells"]))
        for name, cell in measure(model, recipes, one, dense):
            own["cells"][name] = cell
            save()


def subject(folder: Path, text: Path) -> Subject:
    recipe = lrcore.Recipe(
        model=str(folder), data=str(text / "wikitext2.train.txt"), samples=64, seq_len=CONTEXT
    )
    return Subject(folder.name, recipe, str(text / "wikitext2.test.txt"), 64)


# ---- models


def _llama(**shared: Any) -> PreTrainedModel:
    """Heads that share keys in pairs, SwiGLU, rotary positions."""
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2}
    return LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=LAYERS, intermediate_size=344, **sizes, **shared)
    )


def _opt(**shared: Any) -> PreTrainedModel:
    """Every head with keys of its own, ReLU, learned positions, biases."""
    sizes = {"num_attention_heads": HEADS, "word_embed_proj_dim": WIDTH, "ffn_dim": 4 * WIDTH}
    return OPTForCausalLM(OPTConfig(num_hidden_layers=LAYERS, dropout=0.0, **sizes, **shared))


ARCHITECTURES: dict[str, Callable[..., PreTrainedModel]] = {"llama": _llama, "opt": _opt}


def trained(architecture: str, seed: int, text: Path) -> Path:
    """The folder of a trained model, made where it is not there."""
    folder = FOLDER / f"{architecture}-{seed}"
    if folder.exists():
        return folder
    read = (text / "wikitext2.train.txt").read_text(encoding="utf-8")
    tokenizer = byte_pairs(read)
    tokens = torch.tensor(tokenizer.backend_tokenizer.encode(read, add_special_tokens=False).ids)
    torch.manual_seed(seed)
    network = ARCHITECTURES[architecture](
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    train(network, tokens, torch.Generator().manual_seed(seed))
    partial = folder.with_suffix(".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    network.eval().save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


def byte_pairs(text: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of VOCABULARY tokens; encoding adds no special tokens."""
    end = "<|endoftext|>"
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[end],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=own, bos_token=end, eos_token=end, pad_token=end, model_max_length=CONTEXT
    )


def train(network: PreTrainedModel, tokens: torch.Tensor, generator: torch.Generator) -> None:
    """STEPS steps of BATCH windows at random places of the text."""
    adam, places = optimiser(network), torch.arange(CONTEXT + 1)
    network.train()
    for step in range(STEPS):
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH, 1), generator=generator)
        rows = tokens[starts + places]
        logits = network(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = learning_rate(step, STEPS, RATE)
        adam.step()
        adam.zero_grad()
        if step % 50 == 49:
            note(f"{network.config.model_type} step {step + 1} of {STEPS}: loss {loss.item():.3f}")


# ---- table


def section(architecture: str, entries: list[Cell]) -> str:
    """Rises of the loss over the dense model's, mean ± standard deviation over the seeds."""
    dense = ", ".join(f"{one['dense']:.2f}" for one in entries)
    words = (
        f"**{architecture}**, {len(entries)} models: dense perplexity {dense}. Rise of the loss in "
        "nats/token, mean ± standard deviation over the models."
    )
    header = ["method", "policy", *(f"{ratio:.0%}" for ratio in RATIOS)]
    return f"{words}\n\n{table(header, list(rows_of(entries)))}"


def rows_of(entries: list[Cell]) -> Iterator[list[str]]:
    for method in (row["name"] for row in lrcore.methods()):
        for policy in POLICIES:
            shown = [spread(rises(entries, f"{method} {policy}", ratio)) for ratio in RATIOS]
            if any(cell != "–" for cell in shown):
                yield [method, policy, *shown]


def rises(entries: list[Cell], row: str, ratio: float) -> list[float]:
    """Of a method's own budget, of the models that have the cell."""
    found = [
        math.log(cell["perplexity"] / one["dense"])
        for one in entries
        for name, cell in one["cells"].items()
        if name.startswith(f"{row} ") and name.endswith(f" {ratio}")
    ]
    return found


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"
