"""The model card of a demo model: training curve, perplexities, probe accuracy and samples."""

import json
import math
from pathlib import Path

import demo_corpus
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lrcore.data import Texts, load_texts, make_windows, stories

PROMPTS = (
    "Once upon a time, there was a",
    "One morning, Tom went to the",
    "Anna was in the park. Tom came along. Tom gave the red ball to",
)
PROBES = 200
CURVE_ROWS = 16
_WIKITEXT = "wikitext2.test.txt"
_DATA = """\
`stories/train` is made by `scripts/stories`; `python-docs/train` is the documentation of the
Python interpreter that ran the training. The public texts are train splits or samples and are not
part of this repository. No text measured below was used for training. Documents are shuffled and
end with the end-of-text token. A document may consist of up to three short stories in a row, joined
by a blank line, as in evaluation.
"""
_PROTOCOL = """\
Documents joined with a blank line, tokenized once without special tokens, all non-overlapping full
windows, float32. Losses are per token of this tokenizer and cannot be compared across tokenizers.
"""


def write_card(name: str, run_file: Path, folder: Path, reference: Path | None) -> None:
    """Measure the exported model in a folder and write its README.md.

    reference: folder with WikiText-2, or None to skip it.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    run = json.loads(run_file.read_text())
    texts = [load_texts("stories/test"), load_texts("python-docs/test")]
    if reference is not None:
        texts.append(
            Texts(((reference / _WIKITEXT).read_text(encoding="utf-8"),), "WikiText-2 test")
        )
    parts = [
        _head(name, model, run),
        _data(run),
        _curve(run),
        _perplexities(model, tokenizer, texts),
        _probes(model, tokenizer),
        _samples(model, tokenizer),
        _making(name, run),
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")
    print("\n".join(parts[2:6]))


def _head(name: str, model, run: dict) -> str:
    config, parameters = model.config, sum(p.numel() for p in model.parameters())
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    inner = getattr(config, "intermediate_size", None) or config.ffn_dim
    details = {
        "llama": "rotary positions, SwiGLU",
        "opt": "learned positions, biases, ReLU, layer norm before each block",
    }
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# {name}

A small trained language model ({parameters:,} parameters) for demonstrations and tests of low-rank
compression without a network. Architecture {config.model_type}: {config.num_hidden_layers} layers,
hidden size {config.hidden_size}, {config.num_attention_heads} query heads and {kv_heads} key-value
heads of {config.hidden_size // config.num_attention_heads}, inner size {inner},
{details[config.model_type]}, tied embeddings, context {config.max_position_embeddings}, float32.
Byte-level BPE tokenizer with {config.vocab_size} entries; encoding adds no special tokens,
`{demo_corpus.EOS}` ends a document. The model writes simple stories and has no knowledge of the
world; it has no other use.

Trained on {run["tokens"]:,} tokens in {run["seconds"] / 60:.0f} minutes on two CPU cores.
License: Apache-2.0.
"""


def _data(run: dict) -> str:
    total = sum(run["sources"].values())
    rows = [
        f"| {source} | {count:,} | {100 * count / total:.1f} % |"
        for source, count in run["sources"].items()
    ]
    return "\n".join(["## Data\n", _DATA, "| source | tokens | share |\n|---|---|---|", *rows, ""])


def _curve(run: dict) -> str:
    losses, steps = run["losses"], len(run["losses"])
    size = math.ceil(steps / CURVE_ROWS)
    rows = []
    for start in range(0, steps, size):
        part = losses[start : start + size]
        rows.append(
            f"| {start + 1}-{start + len(part)} | {(start + len(part)) * run['batch'] / 1e6:.1f} "
            f"M | {sum(part) / len(part):.3f} |"
        )
    return "\n".join(
        [
            "## Training loss (nats per token, mean over the steps)\n",
            "| steps | tokens read | loss |\n|---|---|---|",
            *rows,
            "",
        ]
    )


def _perplexities(model, tokenizer, texts: list[Texts]) -> str:
    rows = []
    for text in texts:
        short, long = (
            _nll(model, make_windows(text, tokenizer, None, length).tokens) for length in (256, 512)
        )
        rows.append(
            f"| {text.source} | {math.exp(short):.3f} ({short:.3f}) | {math.exp(long):.3f} "
            f"({long:.3f}) |"
        )
    title = "## Perplexity (and loss in nats per token)\n"
    return "\n".join(
        [title, _PROTOCOL, "| text | windows of 256 | windows of 512 |\n|---|---|---|", *rows, ""]
    )


@torch.inference_mode()
def _nll(model, tokens: torch.LongTensor) -> float:
    """Return the mean loss in nats over the seq_len - 1 predicted tokens of each window.

    tokens [n, seq_len].
    """
    total = 0.0
    for rows in tokens.split(16):
        logits = (
            model(input_ids=rows).logits[:, :-1].flatten(0, 1)
        )  # [rows * (seq_len - 1), vocabulary]
        total += (
            torch.nn.functional.cross_entropy(
                logits.float(), rows[:, 1:].flatten(), reduction="none"
            )
            .double()
            .sum()
            .item()
        )
    return total / (tokens.shape[0] * (tokens.shape[1] - 1))


@torch.inference_mode()
def _probes(model, tokenizer) -> str:
    right: dict[str, list[int]] = {}
    chance: dict[str, float] = {}
    for probe in stories.probes("test", PROBES):
        scores = [
            _choice_score(model, tokenizer, probe["question"], choice)
            for choice in probe["choices"]
        ]
        right.setdefault(probe["kind"], []).append(int(scores.index(max(scores)) == probe["label"]))
        chance[probe["kind"]] = chance.get(probe["kind"], 0.0) + 1 / len(probe["choices"])
    rows = [
        f"| {kind} | {sum(hits)} / {len(hits)} | {chance[kind] / len(hits):.0%} |"
        for kind, hits in sorted(right.items())
    ]
    hits = sum(map(sum, right.values()))
    title = f"## Probes: {hits} of {PROBES} story questions answered (stories/test)\n"
    return "\n".join([title, "| question about | right | by chance |\n|---|---|---|", *rows, ""])


def _choice_score(model, tokenizer, question: str, choice: str) -> float:
    """Return the mean log-likelihood per token of a choice after a question."""
    tail = tokenizer(choice, add_special_tokens=False)["input_ids"]
    head = tokenizer(question, add_special_tokens=False)["input_ids"][
        -(demo_corpus.CONTEXT - len(tail)) :
    ]
    logits = model(input_ids=torch.tensor([head + tail])).logits[
        0, len(head) - 1 : -1
    ]  # [len(tail), vocabulary]
    return logits.log_softmax(-1)[range(len(tail)), tail].mean().item()


@torch.inference_mode()
def _samples(model, tokenizer) -> str:
    blocks = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(
            input_ids=ids["input_ids"],
            attention_mask=ids["attention_mask"],
            do_sample=False,
            max_new_tokens=120,
        )
        blocks.append(
            "> "
            + tokenizer.decode(generated[0], skip_special_tokens=True).strip().replace("\n", "\n> ")
        )
    return "## Greedy samples (120 tokens)\n\n" + "\n\n".join(blocks) + "\n"


def _making(name: str, run: dict) -> str:
    return f"""## How it was made

```
python scripts/train_demo.py {name} --tokens {run.get("asked", run["tokens"])} --reference DIR
```

AdamW (0.9, 0.95), weight decay 0.1 on matrices, gradients clipped at 1, batches of
{run["batch"]:,} tokens, learning rate up to {run["peak_lr"]:g} over 100 steps and then linearly to
zero, bfloat16 autocast with float32 weights. The first 80 % of the tokens are read in windows of
256, the last 20 % in windows of 512, so that all positions are trained.
"""
