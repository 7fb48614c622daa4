"""What optimum makes of exports, for ONNX Runtime and for OpenVINO: tried, and written to
docs/serving.md.

    python scripts/optimum_exports.py FOLDER [MODEL ...]     demo-llama and smollm2-135m by default;
                                                             needs 2 GB of disk

FOLDER keeps a virtual environment for each library, which sees the packages of this one: each wants
a release of transformers of its own. Every structure of a model is exported with and without code,
and converted there. `--inside` is what the script calls itself with there.
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
SEEN = f"torch=={torch.__version__.partition('+')[0]}"  # no other may come


@dataclass(frozen=True)
class Library:
    """title: of its rows. installed: by pip; removed: what of that is broken beside a torch for
    CPUs. named: whose versions the document says.
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
        ("optimum-intel[openvino]==2.2.0", "datasets"),  # the datasets of here wants a newer hub
        ("torchvision",),
        ("optimum-intel", "optimum", "transformers", "openvino"),
    ),
}


def converted(name: str, folder: Path) -> tuple[Any, Any]:
    """In the environment of a library: an export in its form, in float32, and its tokenizer."""
    from transformers import AutoTokenizer

    how: dict[str, Any] = {"export": True, "trust_remote_code": True}
    if name == "onnx":
        from optimum.onnxruntime import ORTModelForCausalLM as Model
    else:
        from optimum.intel import OVModelForCausalLM as Model

        how |= {"load_in_8bit": False, "ov_config": {"EXECUTION_MODE_HINT": "ACCURACY"}}
    network = Model.from_pretrained(folder, **how)
    return network, AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def exports(
    name: str, place: Path, only: list[str]
) -> Iterator[tuple[str, list[Path], dict[str, list[Any]]]]:
    """(structure, its export without code and that with code, the answers of the model here)."""
    from where_it_runs import structures

    import lrcore

    for title, model in structures(name, only=only):
        stock = lrcore.export(model, place / f"{title} stock", stock=True)
        coded = lrcore.export(model, place / f"{title} with code")
        yield title, [stock, coded], releases.answers(model.network, model.tokenizer)


def written(name: str, pythons: dict[str, Path], only: list[str]) -> None:
    """Try structures of a model, all unless some are named, in every library; write its table."""
    from bench.page import note, table, write_section
    from where_it_runs import PAGE

    kinds = ("stock", "with code")
    rows = {(library, kind): list[str]() for library in LIBRARIES for kind in kinds}
    known: dict[str, str] = {}
    titles: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        for title, folders, expected in exports(name, Path(place), only):
            titles.append(title)
            for library, python in pythons.items():
                call = [python, __file__, *folders, "--inside", library]
                said = releases.asked(call, Path(place))
                words = [f"{own} {version}" for own, version in said["versions"].items()]
                known[library] = f"{LIBRARIES[library].title} with {', '.join(words)}"
                for kind, found in zip(kinds, said["found"], strict=True):
                    rows[library, kind].append(releases.verdict(found, expected))
                    note(f"{name}, {title}, {library}, {kind}: {rows[library, kind][-1]}")
    cells = [[f"{LIBRARIES[one].title}, {kind}", *own] for (one, kind), own in rows.items()]
    text = f"**{name}** in float32 on a CPU; {'; '.join(known.values())}."
    write_section(f"optimum {name}", f"{text}\n\n{table(['', *titles], cells)}", PAGE)


def main() -> None:
    """Read the arguments; go on in the environment of a library where asked to."""
    parser = parser_of(__doc__, metavar="LIBRARY", help="all arguments are exports")
    add_only(parser)
    given = parser.parse_args()
    if name := given.inside:
        folders = [given.folder, *map(Path, given.models)]
        releases.inside(folders, LIBRARIES[name].named, lambda folder: converted(name, folder))
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    from where_it_runs import MODELS

    folder = given.folder.expanduser().absolute()
    pythons = {
        name: environment(folder / name, (*one.installed, SEEN), one.removed)
        for name, one in LIBRARIES.items()
    }
    for name in given.models or MODELS:
        written(name, pythons, given.only)


if __name__ == "__main__":
    main()
