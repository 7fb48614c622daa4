"""Train a demo model on the CPU; an interrupted run continues from its last checkpoint.

$ python scripts/train_demo.py demo-llama --tokens 20000000 --reference DIR
$ python scripts/train_demo.py demo-llama --card # only measure and rewrite the card
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
import demo_corpus  # noqa: E402  (needs the path above)

WORK = ROOT / ".train"
LONG_SHARE = (
    0.2  # of the tokens, read last in windows of 512 tokens, so that all positions are trained
)
BATCH = 8192  # tokens per optimizer step
MICRO = 4096  # tokens per forward pass; larger passes exceed the CPU cache
PEAK_LR = {"demo-llama": 3e-3, "demo-opt": 2.5e-3}
WARMUP = 100
CHECKPOINT_SECONDS = 180


def new_model(name: str):
    torch.manual_seed(demo_corpus.SEED)
    build = _llama if name == "demo-llama" else _opt
    return build(
        vocab_size=demo_corpus.VOCABULARY,
        max_position_embeddings=demo_corpus.CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def _llama(**shared) -> LlamaForCausalLM:
    """Return a Llama with 5,139,712 parameters.

    Grouped-query attention (8 query heads, 4 key-value heads), SwiGLU, rotary positions.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            intermediate_size=688,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            **shared,
        )
    )


def _opt(**shared) -> OPTForCausalLM:
    """Return an OPT with 3,358,080 parameters: multi-head attention, ReLU, learned positions."""
    return OPTForCausalLM(
        OPTConfig(
            hidden_size=192,
            num_hidden_layers=6,
            num_attention_heads=6,
            ffn_dim=768,
            activation_function="relu",
            word_embed_proj_dim=192,
            do_layer_norm_before=True,
            dropout=0.0,
            attention_dropout=0.0,
            layerdrop=0.0,
            **shared,
        )
    )


def load_tokenizer(reference: Path | None) -> PreTrainedTokenizerFast:
    folder = WORK / "tokenizer"
    if not folder.exists():
        demo_corpus.train_tokenizer(reference).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def load_stream(
    tokenizer, name: str, tokens: int, reference: Path | None
) -> tuple[numpy.ndarray, dict[str, int]]:
    path = WORK / f"{name}-{tokens}.npy"
    if not path.exists():
        stream, sources = demo_corpus.build_stream(tokenizer, tokens, reference)
        path.with_suffix(".json").write_text(json.dumps(sources, allow_nan=False))
        _replace(path, lambda partial: numpy.save(partial, stream))
    return numpy.load(path), json.loads(path.with_suffix(".json").read_text())


def batches(stream: numpy.ndarray) -> list[numpy.ndarray]:
    """Return the windows of each optimizer step, [rows, 257] and then [rows, 513].

    The last, incomplete step of each length is omitted.
    """
    split = int(len(stream) * (1 - LONG_SHARE))
    steps = []
    for part, seq_len in ((stream[:split], 256), (stream[split:], 512)):
        rows, size = demo_corpus.windows(part, seq_len, demo_corpus.SEED), BATCH // seq_len
        steps += [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
    return steps


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: linear warm-up, then linear decay to zero."""
    return peak * min((step + 1) / WARMUP, (steps - step) / max(1, steps - WARMUP))


def optimizer(model) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)


def train(name: str, tokens: int, reference: Path | None) -> None:
    tokenizer = load_tokenizer(reference)
    stream, sources = load_stream(tokenizer, name, tokens, reference)
    steps, model = batches(stream), new_model(name)
    adam = optimizer(model)
    state = _restore(name, tokens, model, adam)

    @torch.compile
    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=inputs, use_cache=False).logits  # [rows, seq_len, vocabulary]
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    saved, parameters = time.time(), sum(p.numel() for p in model.parameters())
    print(
        f"{name}: {parameters} parameters, {len(steps)} steps of {BATCH} tokens, from step "
        f"{state['step']}",
        flush=True,
    )
    for step in range(state["step"], len(steps)):
        started = time.time()
        for group in adam.param_groups:
            group["lr"] = learning_rate(step, len(steps), PEAK_LR[name])
        loss = _step(loss_of, model, adam, torch.from_numpy(steps[step].astype(numpy.int64)))
        spent = time.time() - started
        state["step"], state["seconds"] = step + 1, state["seconds"] + spent
        state["losses"].append(loss)
        if step % 20 == 0 or step + 1 == len(steps):
            recent = state["losses"][-20:]
            print(
                f"step {step + 1}/{len(steps)} loss {sum(recent) / len(recent):.4f} tokens/s "
                f"{BATCH / spent:.0f}",
                flush=True,
            )
        if time.time() - saved > CHECKPOINT_SECONDS or step + 1 == len(steps):
            _checkpoint(name, tokens, model, adam, state)
            export(name, model, tokenizer)
            saved = time.time()
    run = {
        "tokens": len(steps) * BATCH,
        "asked": tokens,
        "sources": sources,
        "peak_lr": PEAK_LR[name],
        "batch": BATCH,
        **state,
    }
    _replace(
        WORK / f"{name}.run.json",
        lambda path: path.write_text(json.dumps(run, allow_nan=False)),
    )


def _step(loss_of, model, adam, rows: torch.Tensor) -> float:
    parts = rows.split(MICRO // (rows.shape[1] - 1))
    total = 0.0
    for part in parts:
        loss = loss_of(part[:, :-1].contiguous(), part[:, 1:].contiguous()) / len(parts)
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    adam.zero_grad()
    return total


def _checkpoint(name: str, tokens: int, model, adam, state: dict) -> None:
    full = {**state, "model": model.state_dict(), "adam": adam.state_dict()}
    _replace(WORK / f"{name}-{tokens}.pt", lambda path: torch.save(full, path))


def _restore(name: str, tokens: int, model, adam) -> dict:
    path = WORK / f"{name}-{tokens}.pt"
    if not path.exists():
        return {"step": 0, "seconds": 0.0, "losses": []}
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved.pop("model"))
    adam.load_state_dict(saved.pop("adam"))
    return saved


def export(name: str, model, tokenizer) -> None:
    """Write a float32 model folder; each file is replaced atomically."""
    partial, target = WORK / f"{name}.export", ROOT / "assets" / name
    model.generation_config.update(max_new_tokens=120, do_sample=False)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    target.mkdir(parents=True, exist_ok=True)
    for file in partial.iterdir():
        os.replace(file, target / file.name)


def _replace(path: Path, write) -> None:
    partial = path.with_name(f"partial-{path.name}")
    write(partial)
    os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=("demo-llama", "demo-opt", "tokenizer"))
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument(
        "--reference",
        type=Path,
        help="folder with the public training texts; without it only built-in texts are read",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="only measure the exported model and write its card",
    )
    arguments = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    torch.set_num_threads(os.cpu_count() or 1)
    if arguments.model == "tokenizer":
        load_tokenizer(arguments.reference)
        return
    if not arguments.card:
        train(arguments.model, arguments.tokens, arguments.reference)
    from demo_card import write_card

    write_card(
        arguments.model,
        WORK / f"{arguments.model}.run.json",
        ROOT / "assets" / arguments.model,
        arguments.reference,
    )


if __name__ == "__main__":
    main()
