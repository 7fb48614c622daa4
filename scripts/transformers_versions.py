"""Which releases of transformers load an export, for docs/serving.md.

    python scripts/transformers_versions.py FOLDER [MODEL ...]     demo-llama and smollm2-135m by
                                                                   default; 200 MB per release

FOLDER keeps the releases with what they need but torch, which is that of this environment. Each
structure of a model is exported once, and loaded in a process of every release that sees no code of
this project. `--inside` is what the script calls itself with there.
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
# the oldest that requirements.txt allows, and the last of every later 5.x that it allows
VERSIONS = ("5.17.0", "5.18.0", "5.19.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0", "5.24.0")
PROMPTS = ("Once upon a time", "The little dog")
TOKENS = 24
CLOSE = 1e-4  # how far apart logits may be that are the same, of the largest
Load = Callable[[Path], tuple[Any, Any]]


@torch.inference_mode()
def answers(network: Any, tokenizer: Any) -> dict[str, list[Any]]:
    """Logits of the last token of every prompt, and greedy tokens after it."""
    found: dict[str, list[Any]] = {"logits": [], "tokens": []}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        made = network.generate(
            **given,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        found["logits"].append(network(**given).logits[0, -1].tolist())
        found["tokens"].append(made[0, ids.shape[1] :].tolist())
    return found


def load(folder: Path) -> tuple[Any, Any]:
    """The network and the tokenizer of an export."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.float32
    )
    return network.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def inside(folders: list[Path], packages: Sequence[str], load: Load = load) -> None:
    """Print the versions of packages, and the answers of every export; of one that does not load,
    the error.
    """
    found: list[dict[str, Any]] = []
    for folder in folders:
        try:
            found.append(answers(*load(folder)))
        except Exception as error:  # whatever a release raises is the finding
            found.append({"error": [f"{type(error).__name__}: {error}"]})
    assert "lrcore" not in sys.modules
    versions = {name: version(name) for name in packages}
    print(json.dumps({"versions": versions, "found": found}, allow_nan=False))


def release(folder: Path, version: str) -> Path:
    """The place of a release, which is installed where it is not there yet."""
    place = folder / version
    if not (place / "transformers").is_dir():
        wanted = ["--target", str(place), f"transformers=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted], check=True)
    return place


def asked(call: Sequence[str | Path], place: Path, **own: str) -> dict[str, Any]:
    """What `inside` says in a process that begins in `place`. own: of its environment."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        call, stdout=subprocess.PIPE, text=True, env=os.environ | quiet | own, check=True, cwd=place
    )
    line = [line for line in done.stdout.splitlines() if line.startswith("{")][-1]
    return dict(json.loads(line))


def loaded(place: Path, exports: list[Path]) -> list[dict[str, Any]]:
    """What `inside` says of the exports in a release."""
    call = [sys.executable, __file__, *exports, "--inside"]
    said = asked(call, place, PYTHONPATH=str(place))
    assert said["versions"] == {"transformers": place.name}
    return list(said["found"])


def verdict(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Whether an export gave the tokens and logits of the model itself."""
    if "error" in found:
        print(found["error"][0], file=sys.stderr)
        return "no"
    if found["tokens"] != expected["tokens"]:
        return "other tokens"
    there, here = torch.tensor(found["logits"]), torch.tensor(expected["logits"])
    change = (there - here).abs().max() / here.abs().max()
    return "yes" if change <= CLOSE else f"logits differ by {change:.1e}"


def written(name: str, folder: Path, versions: list[str]) -> None:
    """Export every structure of a model, load all by every release, and write the table."""
    from bench.page import note, table, write_section
    from where_it_runs import PAGE, structures

    import lrcore

    with tempfile.TemporaryDirectory() as place:
        exports: dict[str, Path] = {}
        expected = []
        for title, model in structures(name):
            exports[title] = lrcore.export(model, Path(place) / str(len(exports)))
            expected.append(answers(model.network, model.tokenizer))
        rows = []
        for version in versions:
            found = loaded(release(folder, version), list(exports.values()))
            rows.append([version, *map(verdict, found, expected)])
            note(f"{name}, {rows[-1]}")
    text = f"**{name}**\n\n{table(['transformers', *exports], rows)}"
    write_section(f"transformers {name}", text, PAGE)


def main() -> None:
    """Read the arguments."""
    parser = parser_of(__doc__, action="store_true", help="all arguments are exports")
    parser.add_argument("--version", action="append", help="a release; repeatable, else all")
    given = parser.parse_args()
    if given.inside:
        inside([given.folder, *map(Path, given.models)], ["transformers"])
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    from where_it_runs import MODELS

    for name in given.models or MODELS:
        written(name, given.folder.expanduser().absolute(), given.version or list(VERSIONS))


if __name__ == "__main__":
    main()
