"""The code an exported checkpoint carries, cut from the sources of the modules themselves: what
`install` reaches, and nothing else.

Making modules from the values of a layer stays here, and so do describing them and counting their
numbers: methods named as in LEFT_OUT are left out.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from transformers import PreTrainedModel

from ..models.config import own_type
from ..models.per_layer import DENSE_SIZES, UNEVEN

HERE = Path(__file__).resolve().parents[1] / "modules"
START = HERE / "install.py", "install"
ALSO = (
    (HERE / "install.py", "places_in"),
    (HERE / "install.py", "shared_names"),
    (HERE / "adapters.py", "known_to_peft"),
)
LEFT_OUT = ("of", "fill", "sizes", "parameters", "uncounted")

HEAD = '''"""A compressed {base}: `lowrank` in config.json names what is factored.

Needs torch and transformers only.
"""

from __future__ import annotations

'''
MODEL = '''

class LowRankConfig({config}):
    """{config} with `lowrank`; its type is its own, so that no dense network is made of it."""

    model_type = "{type}"

    def to_dict(self):
        known_to_peft()  # which asks for this before it looks for the modules to train
        return super().to_dict()


class LowRank:
    """A network with the modules that config.lowrank describes in the place of its own."""

    config_class = LowRankConfig
    _supports_flash_attn = False
    _supports_flex_attn = False
    inside = ""  # the path of this network in the one that is described

    def __init__(self, config):
        text = config.get_text_config()
        sizes = text.to_dict().get("{uneven}")
        text.{uneven} = config.lowrank.get("{dense}")  # the dense network is made first
        super().__init__(config)
        text.{uneven} = sizes
        install(self, places_in(config.lowrank["layers"], self.inside))
        shared = shared_names(self, "parameters")
        self.all_tied_weights_keys = self.all_tied_weights_keys | shared
        shared |= shared_names(self, "buffers")  # written once, but transformers ties none
        self._tied_weights_keys = (self._tied_weights_keys or {{}}) | shared

    def _get_static_cache_init_shape(self):
        return None  # a layer of the cache takes the shapes of its first keys and values


class LowRankForCausalLM(LowRank, {base}):
    """A compressed {base}."""


class LowRankModel(LowRank, {body}):
    """The same without its head, as AutoModel and servers with a head of their own make it."""

    inside = "{inside}"
'''


@dataclass
class Cut:
    """What has been reached so far: top-level statements by file, and imports from outside the
    project.
    """

    nodes: dict[Path, dict[str, ast.stmt]] = field(default_factory=dict)
    imports: set[tuple[str, str]] = field(
        default_factory=set
    )  # (module, name); no module for a plain import

    def reach(self, file: Path, name: str) -> None:
        """Take in the statement that defines `name` in a file, and all that it uses.

        Builtins and local names define nothing.
        """
        own, node = self.nodes.setdefault(file, {}), _defining(parsed(file), name)
        if isinstance(node, ast.ImportFrom) and node.level:
            self.reach(_imported(file, node), name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.add(_import_of(node, name))
        elif node is not None and name not in own:
            own[name] = node
            for used in _used_by(file, name):
                self.reach(file, used)


def modeling_source(network: PreTrainedModel) -> str:
    """The text of a modeling file whose model and config subclass those of a network, compressed
    or not.

    Raises ValueError where two files define one name, since their contents share one file here.
    """
    cut = Cut()
    cut.reach(*START)
    for also in ALSO:
        cut.reach(*also)
    names = [name for own in cut.nodes.values() for name in own]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"defined in two of the files that an export joins: {', '.join(twice)}")
    base, config = type(network).__name__, type(network.config).__name__
    body = type(network.base_model).__name__
    imports = _import_lines(cut.imports | {("transformers", one) for one in (base, body, config)})
    pieces = [
        _text(file, node)
        for file in _in_order(list(cut.nodes))
        for node in sorted(cut.nodes[file].values(), key=lambda node: node.lineno)
    ]
    kind = own_type(network.config.model_type)
    model = MODEL.format(
        base=base,
        body=body,
        inside=network.base_model_prefix,
        config=config,
        type=kind,
        uneven=UNEVEN,
        dense=DENSE_SIZES,
    )
    return HEAD.format(base=base) + "\n\n\n".join([imports, *pieces]) + "\n" + model


def _in_order(files: Sequence[Path]) -> list[Path]:
    """The files, each after those it imports from: a class stands after its base."""
    ordered: dict[Path, None] = {}
    for file in files:
        before = [
            _imported(file, node)
            for node in parsed(file).body
            if isinstance(node, ast.ImportFrom) and node.level
        ]
        own = [other for other in before if other in files]
        ordered |= dict.fromkeys([*(_in_order(own) if own else ()), file])
    return list(ordered)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _used_by(file: Path, name: str) -> tuple[str, ...]:
    """Names that the statement uses which defines `name` in a file, in order."""
    node = _defining(parsed(file), name)
    return () if node is None else tuple(sorted(_used(node)))


def _defining(tree: ast.Module, name: str) -> ast.stmt | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            return node
    return None


def _imported(file: Path, node: ast.ImportFrom) -> Path:
    """The file of a relative import."""
    module = (node.module or "").split(".")
    return file.parents[node.level - 1].joinpath(*module).with_suffix(".py")


def _import_of(node: ast.Import | ast.ImportFrom, name: str) -> tuple[str, str]:
    alias = next(alias for alias in node.names if (alias.asname or alias.name) == name)
    return (node.module or "" if isinstance(node, ast.ImportFrom) else ""), alias.name + (
        f" as {alias.asname}" if alias.asname else ""
    )


def _import_lines(imports: set[tuple[str, str]]) -> str:
    """One line per module, plain imports first."""
    modules = sorted({module for module, _ in imports if module})
    plain = [f"import {name}" for module, name in sorted(imports) if not module]
    return "\n".join(
        [
            *plain,
            *(
                f"from {module} import {', '.join(sorted(n for m, n in imports if m == module))}"
                for module in modules
            ),
        ]
    )


def _used(node: ast.AST) -> set[str]:
    """Names that a statement refers to, its types among them, but for its own arguments and
    variables, and for methods left out.
    """
    if isinstance(node, ast.FunctionDef) and node.name in LEFT_OUT:
        return set()
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    names: set[str] = set().union(*map(_used, ast.iter_child_nodes(node)))
    if isinstance(node, ast.FunctionDef):
        names -= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        names -= {
            part.id
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
    return names


def _text(file: Path, node: ast.stmt) -> str:
    """The source of a statement with the comments on it, without the methods left out."""
    lines = file.read_text(encoding="utf-8").splitlines()
    first = _first_line(node)
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    dropped: set[int] = set()
    for part in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
        if isinstance(part, ast.FunctionDef) and part.name in LEFT_OUT:
            dropped |= set(
                range(_first_line(part), _last_line(part) + 2)
            )  # with the blank line after it
    return "\n".join(
        lines[number - 1] for number in range(first, _last_line(node) + 1) if number not in dropped
    )


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
