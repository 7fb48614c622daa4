"""Test exports in several releases of transformers, for docs/serving.md.

    python scripts/transformers_versions.py FOLDER [MODEL ...]     default: demo-llama and
                                                                   smollm2-135m; 200 MB per release

FOLDER holds the releases and their requirements; torch is that of the current environment. Each
structure of a model is exported, and loaded in a process per release without this project.
`--inside` marks the call in such a process.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from environments import parser_of

ROOT = Path(__file__).resolve().parent.parent
# The oldest supported release, and the last patch of each later supported 5.x.
VERSIONS = ("5.17.0", "5.18.0", "5.19.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0", "5.24.0")
PROMPTS = ("Once upon a time", "The little dog")
TOKENS = 24
CLOSE = 1e-4  # tolerated change of logits, relative to the largest
Load = Callable[[Path], tuple[Any, Any]]


@torch.inference_mode()
def answers(network: Any, tokenizer: Any) -> dict[str, list[Any]]:
    """Return logits of the last token and greedy tokens for each prompt."""
    results: dict[str, list[Any]] = {"logits": [], "tokens": []}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        generated = network.generate(
            **inputs,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        results["logits"].append(network(**inputs).logits[0, -1].tolist())
        results["tokens"].append(generated[0, ids.shape[1] :].tolist())
    return results


def load(folder: Path) -> tuple[Any, Any]:
    """Return network and tokenizer of an export."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.float32
    )
    return network.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def inside(folders: list[Path], packages: Sequence[str], load: Load = load) -> None:
    """Print versions of packages, and answers or the error of each export."""
    results: list[dict[str, Any]] = []
    for folder in folders:
        try:
            results.append(answers(*load(folder)))
        except Exception as error:  # any error of a release is a result
            results.append({"error": [f"{type(error).__name__}: {error}"]})
    assert "lrcore" not in sys.modules
    versions = {name: version(name) for name in packages}
    print(json.dumps({"versions": versions, "found": results}, allow_nan=False))


def release(folder: Path, version: str) -> Path:
    """Return the folder of a release, which is installed if it does not exist."""
    target = folder / version
    if not (target / "transformers").is_dir():
        arguments = ["--target", str(target), f"transformers=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments], check=True)
    return target


def run_inside(call: Sequence[str | Path], folder: Path, **variables: str) -> dict[str, Any]:
    """Return the output of `inside` in a process with this working folder and environment."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    process = subprocess.run(
        call,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | quiet | variables,
        check=True,
        cwd=folder,
    )
    line = [line for line in process.stdout.splitlines() if line.startswith("{")][-1]
    return dict(json.loads(line))


def loaded(folder: Path, exports: list[Path]) -> list[dict[str, Any]]:
    """Return the answers of the exports in a release."""
    call = [sys.executable, __file__, *exports, "--inside"]
    answer = run_inside(call, folder, PYTHONPATH=str(folder))
    assert answer["versions"] == {"transformers": folder.name}
    return list(answer["found"])


def verdict(result: dict[str, Any], expected: dict[str, Any]) -> str:
    """Compare tokens and logits of an export and of the model."""
    if "error" in result:
        print(result["error"][0], file=sys.stderr)
        return "no"
    if result["tokens"] != expected["tokens"]:
        return "other tokens"
    logits, expected_logits = torch.tensor(result["logits"]), torch.tensor(expected["logits"])
    change = (logits - expected_logits).abs().max() / expected_logits.abs().max()
    return "yes" if change <= CLOSE else f"logits differ by {change:.1e}"


def write(name: str, folder: Path, versions: list[str]) -> None:
    """Export all structures of a model, load them in each release, and write the table."""
    from export_targets import PAGE, structures

    import lrcore
    from benchmarks.report import log, table, write_section

    with tempfile.TemporaryDirectory() as parent:
        exports: dict[str, Path] = {}
        expected = []
        for title, model in structures(name):
            exports[title] = lrcore.export(model, Path(parent) / str(len(exports)))
            expected.append(answers(model.network, model.tokenizer))
        rows = []
        for version in versions:
            results = loaded(release(folder, version), list(exports.values()))
            rows.append([version, *map(verdict, results, expected)])
            log(f"{name}, {rows[-1]}")
    text = f"**{name}**\n\n{table(['transformers', *exports], rows)}"
    write_section(f"transformers {name}", text, PAGE)


def main() -> None:
    """Test the exports of each model."""
    parser = parser_of(__doc__, action="store_true", help="all arguments are exports")
    parser.add_argument("--version", action="append", help="a release; repeatable, default: all")
    arguments = parser.parse_args()
    if arguments.inside:
        inside([arguments.folder, *map(Path, arguments.models)], ["transformers"])
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    from export_targets import MODELS

    folder, versions = arguments.folder.expanduser().absolute(), arguments.version or list(VERSIONS)
    for name in arguments.models or MODELS:
        write(name, folder, versions)


if __name__ == "__main__":
    main()
