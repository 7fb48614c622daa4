"""All methods on small models that were not used for development.

The models are trained on WikiText-2, then compressed.
"""

import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from train_demo import learning_rate, optimizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import lrcore

from .perplexity import Selection, evaluation, measure
from .record import read_record, write_record
from .report import ROOT, log, table, write_section
from .subjects import Subject

SEEDS, RATIOS, POLICIES = (0, 1, 2), (0.1, 0.3, 0.5), ("uniform", "probed")
VOCABULARY, CONTEXT = 2048, 256
BATCH, STEPS, RATE = 16, 700, 3e-3  # BATCH * STEPS windows of CONTEXT tokens: 2.9 million
WIDTH, LAYERS, HEADS = 128, 4, 4
FOLDER = ROOT / ".train" / "fresh"
Entry = dict[str, Any]


def fresh(names: list[str]) -> None:
    """Train missing models, measure missing cells, and write the tables after each model, so that
    an interrupted run can continue. Does nothing if models are named.
    """
    reference = os.environ.get("LRCORE_REFERENCE")
    if names:
        return
    if not reference:
        log("fresh models are skipped: LRCORE_REFERENCE does not name the reference data.")
        return
    record, text = read_record(), Path(reference) / "text"
    for architecture in ARCHITECTURES:
        for seed in SEEDS:
            entry = record.setdefault(f"fresh {architecture} {seed}", {"cells": {}})
            subject = fresh_subject(trained_model(architecture, seed, text), text)
            fill(entry, subject, lambda: write_record(record))
            titles = [f"fresh {architecture} {number}" for number in SEEDS]
            entries = [record[title] for title in titles if title in record]
            write_section(f"fresh {architecture}", section(architecture, entries))


def fill(entry: Entry, subject: Subject, save: Callable[[], None]) -> None:
    """Measure the dense perplexity and the missing cells of a model; save after each cell."""
    model = lrcore.load(subject.recipe.model)
    dense = evaluation(model, subject)
    entry["dense"] = dense.perplexity
    selection = Selection(policies=POLICIES, missing=True, ratios=RATIOS)
    for method in (row["name"] for row in lrcore.list_methods()):
        recipes = selection.recipes(subject.recipe, method, tuple(entry["cells"]))
        for name, cell in measure(model, recipes, subject, dense):
            entry["cells"][name] = cell
            save()


def fresh_subject(folder: Path, text: Path) -> Subject:
    """Return a trained model with WikiText-2 from the folder `text`."""
    recipe = lrcore.Recipe(
        model=str(folder), data=str(text / "wikitext2.train.txt"), samples=64, seq_len=CONTEXT
    )
    return Subject(folder.name, recipe, str(text / "wikitext2.test.txt"), 64)


# ---- models


def _llama(**shared: Any) -> PreTrainedModel:
    """A Llama: two query heads per key head, SwiGLU, rotary positions."""
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2}
    return LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=LAYERS, intermediate_size=344, **sizes, **shared)
    )


def _opt(**shared: Any) -> PreTrainedModel:
    """An OPT: a key head per query head, ReLU, learned positions, biases."""
    sizes = {"num_attention_heads": HEADS, "word_embed_proj_dim": WIDTH, "ffn_dim": 4 * WIDTH}
    return OPTForCausalLM(OPTConfig(num_hidden_layers=LAYERS, dropout=0.0, **sizes, **shared))


ARCHITECTURES: dict[str, Callable[..., PreTrainedModel]] = {"llama": _llama, "opt": _opt}


def trained_model(architecture: str, seed: int, text: Path) -> Path:
    """Return the folder of a trained model; train it if it is missing."""
    folder = FOLDER / f"{architecture}-{seed}"
    if folder.exists():
        return folder
    corpus = (text / "wikitext2.train.txt").read_text(encoding="utf-8")
    tokenizer = byte_pairs(corpus)
    tokens = torch.tensor(tokenizer.backend_tokenizer.encode(corpus, add_special_tokens=False).ids)
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
    """Train a byte-level BPE tokenizer of VOCABULARY tokens that adds no special tokens."""
    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[end],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end,
        eos_token=end,
        pad_token=end,
        model_max_length=CONTEXT,
    )


def train(network: PreTrainedModel, tokens: torch.Tensor, generator: torch.Generator) -> None:
    """Train for STEPS steps of BATCH windows at random positions of the text."""
    adam, offsets = optimizer(network), torch.arange(CONTEXT + 1)
    network.train()
    for step in range(STEPS):
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH, 1), generator=generator)
        rows = tokens[starts + offsets]
        logits = network(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = learning_rate(step, STEPS, RATE)
        adam.step()
        adam.zero_grad()
        if step % 50 == 49:
            log(f"{network.config.model_type} step {step + 1} of {STEPS}: loss {loss.item():.3f}")


# ---- table


def section(architecture: str, entries: list[Entry]) -> str:
    """Return the loss increases over the dense model, mean ± standard deviation over the seeds."""
    dense = ", ".join(f"{entry['dense']:.2f}" for entry in entries)
    caption = (
        f"**{architecture}**, {len(entries)} models: dense perplexity {dense}. Loss increase in "
        "nats/token, mean ± standard deviation over the models."
    )
    header = ["method", "policy", *(f"{ratio:.0%}" for ratio in RATIOS)]
    return f"{caption}\n\n{table(header, list(rows_of(entries)))}"


def rows_of(entries: list[Entry]) -> Iterator[list[str]]:
    """Yield a row per method and policy with a measured cell."""
    for method in (row["name"] for row in lrcore.list_methods()):
        for policy in POLICIES:
            figures = [spread(increases(entries, f"{method} {policy}", ratio)) for ratio in RATIOS]
            if any(cell != "–" for cell in figures):
                yield [method, policy, *figures]


def increases(entries: list[Entry], pairing: str, ratio: float) -> list[float]:
    """Return the loss increases of the models with a cell, for any budget."""
    return [
        math.log(cell["perplexity"] / entry["dense"])
        for entry in entries
        for name, cell in entry["cells"].items()
        if name.startswith(f"{pairing} ") and name.endswith(f" {ratio}")
    ]


def spread(values: list[float]) -> str:
    """Return mean ± standard deviation."""
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"
