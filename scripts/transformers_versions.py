"""Which releases of transformers load an export, for docs/serving.md.

    python scripts/transformers_versions.py FOLDER [VERSION ...]    a minute, 200 MB per release

FOLDER keeps the releases with what they need but torch, which is that of this environment. Each
structure of demo-llama is exported once, and loaded in a process of every release that sees no code
of this project. `--inside` is what the script calls itself with there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
# the oldest and the newest that requirements.txt allows, and between them the last before
# `past_key_values` became `cache`, in 5.24
VERSIONS = ("5.17.0", "5.20.2", "5.23.0", "5.24.0")
PROMPTS = ("Once upon a time", "The little dog")
TOKENS, CLOSE = 24, 1e-4


@torch.inference_mode()
def answers(network: Any, tokenizer: Any) -> dict[str, list[Any]]:
    """Logits of the last token of every prompt, and greedy tokens after it."""
    found: dict[str, list[Any]] = {"logits": [], "tokens": []}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        found["logits"].append(network(ids).logits[0, -1].tolist())
        found["tokens"].append(made[0, ids.shape[1] :].tolist())
    return found


def inside(folders: list[Path]) -> None:
    """Print the release, and the answers of every export; of one that does not load, the error."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found: list[dict[str, Any]] = []
    for folder in folders:
        try:
            network = AutoModelForCausalLM.from_pretrained(
                folder, trust_remote_code=True, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
            found.append(answers(network.eval(), tokenizer))
        except Exception as error:  # whatever a release raises is the finding
            found.append({"error": [f"{type(error).__name__}: {error}"]})
    assert "lrcore" not in sys.modules
    print(json.dumps({"version": transformers.__version__, "found": found}, allow_nan=False))


def release(folder: Path, version: str) -> Path:
    """The place of a release, which is installed where it is not there yet."""
    place = folder / version
    if not (place / "transformers").is_dir():
        wanted = ["--target", str(place), f"transformers=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted], check=True)
    return place


def loaded(place: Path, exports: list[Path]) -> list[dict[str, Any]]:
    """What `inside` says of the exports in a release."""
    own = {"PYTHONPATH": str(place), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    call = [sys.executable, __file__, *map(str, exports), "--inside"]
    done = subprocess.run(
        call, stdout=subprocess.PIPE, text=True, env=os.environ | own, check=True, cwd=place
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    said = json.loads(line)
    assert said["version"] == place.name
    found: list[dict[str, Any]] = said["found"]
    return found


def verdict(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Whether an export gave the tokens and logits of the model itself."""
    if "error" in found:
        print(found["error"][0], file=sys.stderr)
        return "no"
    if found["tokens"] != expected["tokens"]:
        return "other tokens"
    change = (torch.tensor(found["logits"]) - torch.tensor(expected["logits"])).abs().max()
    return "yes" if change <= CLOSE else f"logits differ by {change:.1e}"


def written(folder: Path, versions: list[str]) -> None:
    """Export every structure, load all by every release, and write the table."""
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    from bench.page import note, table, write_section
    from where_it_runs import PAGE, structures

    import lrcore

    with tempfile.TemporaryDirectory() as place:
        exports: dict[str, Path] = {}
        expected = []
        for title, model in structures("demo-llama"):
            exports[title] = lrcore.export(model, Path(place) / str(len(exports)))
            expected.append(answers(model.network, model.tokenizer))
        rows = []
        for version in versions:
            found = loaded(release(folder, version), list(exports.values()))
            rows.append([version, *map(verdict, found, expected)])
            note(str(rows[-1]))
    write_section("transformers", table(["transformers", *exports], rows), PAGE)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--inside", action="store_true", help="all arguments are exports")
    given = parser.parse_args()
    if given.inside:
        inside([given.folder, *map(Path, given.versions if given.versions != VERSIONS else ())])
    else:
        written(given.folder.expanduser().absolute(), list(given.versions))


if __name__ == "__main__":
    main()
