"""Generation of the modeling file in an exported checkpoint, from the sources of the modules.

It contains the code that `install` uses. Methods in LEFT_OUT are omitted: they make modules from
the values of a layer, describe modules, or count parameters.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from transformers import PreTrainedModel

from ..models.config import compressed_type
from ..models.per_layer import DENSE_SIZES_KEY, PER_LAYER_FIELD

MODULES = Path(__file__).resolve().parents[1] / "layers" / "modules"
START = MODULES / "install.py", "install"
ALSO = (
    (MODULES / "install.py", "structure_within"),
    (MODULES / "install.py", "shared_names"),
    (MODULES / "adapters.py", "register_with_peft"),
)
LEFT_OUT = ("of", "fill", "sizes", "parameters", "uncounted")

HEAD = '''"""A compressed {base}; `lowrank` in config.json describes its replaced modules.

Needs torch and transformers only.
"""

from __future__ import annotations

'''
MODEL = '''

class LowRankConfig({config}):
    """{config} with `lowrank`, with a model type that differs from the dense network."""

    model_type = "{type}"

    def to_dict(self):
        register_with_peft()  # PEFT calls to_dict before it searches for trainable modules
        return super().to_dict()


class LowRank:
    """A network whose modules are replaced as config.lowrank describes."""

    config_class = LowRankConfig
    _supports_flash_attn = False
    _supports_flex_attn = False
    inside = ""  # path of this network in the described network

    def __init__(self, config):
        text = config.get_text_config()
        sizes = text.to_dict().get("{uneven}")
        text.{uneven} = config.lowrank.get("{dense}")  # sizes of the dense network
        super().__init__(config)
        text.{uneven} = sizes
        install(self, structure_within(config.lowrank["layers"], self.inside))
        shared = shared_names(self, "parameters")
        self.all_tied_weights_keys = self.all_tied_weights_keys | shared
        shared |= shared_names(self, "buffers")  # saved once, though transformers ties none
        self._tied_weights_keys = (self._tied_weights_keys or {{}}) | shared

    def initialize_weights(self):
        super().initialize_weights()
        # transformers skips this for remote code; Falcon-H1 computes buffers of its layers here
        if any(".mup_vector" in name for name, _ in self.named_buffers()):
            self._init_weights(self.base_model)

    def _get_static_cache_init_shape(self):
        return None  # cache layers take the shapes of the first keys and values


class LowRankForCausalLM(LowRank, {base}):
    """A compressed {base}."""


class LowRankModel(LowRank, {body}):
    """The compressed model without its head, for AutoModel and servers."""

    inside = "{inside}"
'''


@dataclass
class Cut:
    """Top-level statements by file, and imports from outside the project, of the generated file."""

    nodes: dict[Path, dict[str, ast.stmt]] = field(default_factory=dict)
    imports: set[tuple[str, str]] = field(
        default_factory=set
    )  # (module, name); "" as module for a plain import

    def reach(self, file: Path, name: str) -> None:
        """Add the statement that defines `name` in a file, and all statements that it uses.

        Builtins and local names are ignored.
        """
        statements, node = self.nodes.setdefault(file, {}), _defining(parsed(file), name)
        if isinstance(node, ast.ImportFrom) and node.level:
            self.reach(_imported(file, node), name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.add(_import_of(node, name))
        elif node is not None and name not in statements:
            statements[name] = node
            for used in _used_by(file, name):
                self.reach(file, used)


def modeling_source(network: PreTrainedModel) -> str:
    """Generate a modeling file whose classes subclass model and config of a network.

    Raises ValueError if two source files define the same name, since they are joined.
    """
    cut = Cut()
    cut.reach(*START)
    for file, name in ALSO:
        cut.reach(file, name)
    names = [name for statements in cut.nodes.values() for name in statements]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"defined in two of the joined source files: {', '.join(repeated)}")
    base, config = type(network).__name__, type(network.config).__name__
    body = type(network.base_model).__name__
    classes = {("transformers", name) for name in (base, body, config)}
    imports = _import_lines(cut.imports | classes)
    pieces = [
        _text(file, node)
        for file in _in_order(list(cut.nodes))
        for node in sorted(cut.nodes[file].values(), key=lambda node: node.lineno)
    ]
    kind = compressed_type(network.config.model_type)
    model = MODEL.format(
        base=base,
        body=body,
        inside=network.base_model_prefix,
        config=config,
        type=kind,
        uneven=PER_LAYER_FIELD,
        dense=DENSE_SIZES_KEY,
    )
    return HEAD.format(base=base) + "\n\n\n".join([imports, *pieces]) + "\n" + model


def _in_order(files: Sequence[Path]) -> list[Path]:
    """Return the files in an order in which each follows its imports, so bases precede classes."""
    ordered: dict[Path, None] = {}
    for file in files:
        imported = [
            _imported(file, node)
            for node in parsed(file).body
            if isinstance(node, ast.ImportFrom) and node.level
        ]
        earlier = [source for source in imported if source in files]
        ordered |= dict.fromkeys([*(_in_order(earlier) if earlier else ()), file])
    return list(ordered)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _used_by(file: Path, name: str) -> tuple[str, ...]:
    """Return the names in the statement that defines `name` in a file, sorted."""
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
    """Return the file of a relative import."""
    module = (node.module or "").split(".")
    return file.parents[node.level - 1].joinpath(*module).with_suffix(".py")


def _import_of(node: ast.Import | ast.ImportFrom, name: str) -> tuple[str, str]:
    alias = next(alias for alias in node.names if (alias.asname or alias.name) == name)
    return (node.module or "" if isinstance(node, ast.ImportFrom) else ""), alias.name + (
        f" as {alias.asname}" if alias.asname else ""
    )


def _import_lines(imports: set[tuple[str, str]]) -> str:
    """Return import statements, plain imports first."""
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
    """Return the names that a statement refers to, including types.

    Arguments, variables and omitted methods are not counted.
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
    """Return the source of a statement and its comments, without omitted methods."""
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
