"""The house keeps its floors: a module imports lower levels, or its own; read from the source,
nothing is imported.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEVELS = {
    "errors": 0,
    "progress": 0,
    "modules": 1,
    "files": 0,
    "linalg": 0,
    "forms": 0,
    "hqq": 0,
    "layer": 0,
    "recipe": 0,
    "options": 0,
    "statistics": 0,
    "tensor_files": 0,
    "tables": 0,
    "spectra": 1,
    "models": 1,
    "allocation": 2,
    "budget": 2,
    "policies": 2,
    "methods": 2,
    "plan": 2,
    "data": 3,
    "calibration": 3,
    "analyse": 3,
    "generate": 3,
    "evaluation": 3,
    "checkpoints": 3,
    "compression": 3,
    "runs": 3,
    "__init__": 4,
    "cli": 4,
    "__main__": 4,
}
TENSORS_ONLY = (
    "linalg",
    "forms",
    "hqq",
    "layer",
    "spectra",
    "budget",
    "policies",
    "allocation",
    "methods",
)
MODULES = sorted((ROOT / "lrcore").rglob("*.py"))


def room(path: Path) -> str:
    """The first part under lrcore/: a module's name or its package's."""
    return path.relative_to(ROOT / "lrcore").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, absolute; `from a import b` gives both a and a.b."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def rooms(path: Path) -> set[str]:
    """The rooms of lrcore that a file imports from."""
    parts = [name.split(".") for name in imports(path)]
    return {
        part[1] for part in parts if part[0] == "lrcore" and len(part) > 1 and part[1] in LEVELS
    }


def outside(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_room_has_a_level():
    assert {room(path) for path in MODULES} <= LEVELS.keys()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_go_down_or_stay_on_the_floor(path):
    own = LEVELS[room(path)]
    assert {other: LEVELS[other] for other in rooms(path) if LEVELS[other] > own} == {}


def test_no_two_rooms_need_each_other():
    needs = {}
    for path in MODULES:
        needs.setdefault(room(path), set()).update(rooms(path) - {room(path)})
    while free := [key for key, others in needs.items() if not others & needs.keys()]:
        for key in free:
            del needs[key]
    assert needs == {}


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) in TENSORS_ONLY], ids=name)
def test_the_mathematics_sees_tensors_only(path):
    assert not outside(path) & {
        "transformers",
        "safetensors",
        "huggingface_hub",
        "datasets",
        "tokenizers",
    }


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_the_core_knows_no_page(path):
    assert not outside(path) & {"gradio", "plotly", "workbench", "app"}


@pytest.mark.parametrize("path", sorted((ROOT / "workbench").rglob("*.py")), ids=name)
def test_the_page_uses_the_public_words_only(path):
    public = {f"lrcore.{word}" for word in public_words()}
    used = {imported for imported in imports(path) if imported.startswith("lrcore.")}
    assert used <= public
    assert not outside(path) & {"torch", "transformers", "safetensors"}


def public_words() -> set[str]:
    """`lrcore.__all__`, read from the source."""
    for node in ast.parse((ROOT / "lrcore" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return set(ast.literal_eval(node.value))
    raise AssertionError("lrcore/__init__.py names no __all__")
