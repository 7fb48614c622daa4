"""Test conversions of exports by optimum, to ONNX Runtime and OpenVINO, for docs/serving.md.

    python scripts/optimum_exports.py FOLDER [MODEL ...]     default: demo-llama and smollm2-135m;
                                                             needs 2 GB of disk

FOLDER holds a virtual environment per library, which also contains the packages of this
environment: each library needs another release of transformers. Each structure of a model is
exported with and without custom code, and converted. `--inside` marks the call in a virtual
environment.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers_versions as releases
from environments import add_only, environment, parser_of

ROOT = Path(__file__).resolve().parent.parent
SEEN = f"torch=={torch.__version__.partition('+')[0]}"  # pins the installed torch


@dataclass(frozen=True)
class Library:
    """A library that converts exports.

    title: of its rows. installed: packages for pip. removed: installed packages that do not work
    with a torch for CPUs. named: packages whose versions the document lists.
    """

    title: str
    installed: tuple[str, ...]
    removed: tuple[str, ...]
    named: tuple[str, ...]


LIBRARIES = {
    "onnx": Library(
        "`ORTModelForCausalLM`",
        ("optimum-onnx[onnxruntime]==0.1.0",),
        (),
        ("optimum-onnx", "optimum", "transformers", "onnxruntime"),
    ),
    "openvino": Library(
        "`OVModelForCausalLM`",
        ("optimum-intel[openvino]==2.2.0", "datasets"),  # the installed datasets needs a newer hub
        ("torchvision",),
        ("optimum-intel", "optimum", "transformers", "openvino"),
    ),
}


def converted(name: str, folder: Path) -> tuple[Any, Any]:
    """Convert an export in float32, in the environment of a library; return it and its
    tokenizer."""
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"export": True, "trust_remote_code": True}
    if name == "onnx":
        from optimum.onnxruntime import ORTModelForCausalLM as Model
    else:
        from optimum.intel import OVModelForCausalLM as Model

        options |= {"load_in_8bit": False, "ov_config": {"EXECUTION_MODE_HINT": "ACCURACY"}}
    network = Model.from_pretrained(folder, **options)
    return network, AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def exports(
    name: str, parent: Path, only: list[str]
) -> Iterator[tuple[str, list[Path], dict[str, list[Any]]]]:
    """Yield structure, exports without and with custom code, and expected answers."""
    from export_targets import structures

    import lrcore

    for title, model in structures(name, only=only):
        standard = lrcore.export(model, parent / f"{title} standard", standard=True)
        coded = lrcore.export(model, parent / f"{title} with code")
        yield title, [standard, coded], releases.answers(model.network, model.tokenizer)


def write(name: str, pythons: dict[str, Path], only: list[str]) -> None:
    """Test structures of a model in all libraries and write its table."""
    from export_targets import PAGE

    from benchmarks.report import log, table, write_section

    kinds = ("standard", "with code")
    rows = {(library, kind): list[str]() for library in LIBRARIES for kind in kinds}
    descriptions: dict[str, str] = {}
    titles: list[str] = []
    with tempfile.TemporaryDirectory() as parent:
        for title, folders, expected in exports(name, Path(parent), only):
            titles.append(title)
            for library, python in pythons.items():
                call = [python, __file__, *folders, "--inside", library]
                answer = releases.run_inside(call, Path(parent))
                words = [f"{package} {version}" for package, version in answer["versions"].items()]
                descriptions[library] = f"{LIBRARIES[library].title} with {', '.join(words)}"
                for kind, result in zip(kinds, answer["found"], strict=True):
                    rows[library, kind].append(releases.verdict(result, expected))
                    log(f"{name}, {title}, {library}, {kind}: {rows[library, kind][-1]}")
    cells = [[f"{LIBRARIES[key].title}, {kind}", *row] for (key, kind), row in rows.items()]
    text = f"**{name}** in float32 on a CPU; {'; '.join(descriptions.values())}."
    write_section(f"optimum {name}", f"{text}\n\n{table(['', *titles], cells)}", PAGE)


def main() -> None:
    """Run in the virtual environment of each library."""
    parser = parser_of(__doc__, metavar="LIBRARY", help="all arguments are exports")
    add_only(parser)
    arguments = parser.parse_args()
    if name := arguments.inside:
        folders = [arguments.folder, *map(Path, arguments.models)]
        releases.inside(folders, LIBRARIES[name].named, lambda folder: converted(name, folder))
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    from export_targets import MODELS

    folder = arguments.folder.expanduser().absolute()
    pythons = {
        name: environment(folder / name, (*library.installed, SEEN), library.removed)
        for name, library in LIBRARIES.items()
    }
    for name in arguments.models or MODELS:
        write(name, pythons, arguments.only)


if __name__ == "__main__":
    main()
