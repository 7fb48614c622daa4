"""Operations that the source must not use: unpickling, unpacking, evaluating text, building SQL."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "app.py", *sorted((ROOT / "lrcore").rglob("*.py"))]
FILES += sorted((ROOT / "workbench").rglob("*.py"))
# Modules that run code of files or unpack archives.
MODULES = {
    "bz2", "cloudpickle", "dill", "gzip", "joblib", "lzma", "marshal", "pickle", "shelve",
    "tarfile", "xmlrpc", "zipfile", "zlib",
}  # fmt: skip
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load",
    "torch.jit.load", "torch.package", "numpy.load", "np.load", "pandas.read_pickle",
    "pd.read_pickle", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
    "shutil.unpack_archive", "datasets.load_dataset", "extractall",
}  # fmt: skip
OPTIONS = {"trust_remote_code", "allow_pickle", "shell", "unsafe_allow_html"}
# Exceptions, and why they are safe.
ALLOWED = {
    # Between processes of a cluster, see SECURITY.md.
    ("lrcore/runs/cluster/pickling.py", "pickle"),
    ("lrcore/data/stories.py", "gzip"),  # the built-in stories
    # Texts in blocks, as long as they fit into the free memory.
    ("lrcore/data/text_files.py", "gzip"),
    ("lrcore/data/text_files.py", "zlib"),  # its exception
    ("workbench/server/zip_download.py", "zipfile"),  # writes archives only
    ("lrcore/recipes/recipe.py", "yaml.load"),  # with a subclass of SafeLoader
}
SQL_CALLS = {"execute", "executemany", "executescript", "_rows"}
# Allowed in an SQL statement: as many placeholders as values.
PLACEHOLDERS = "', '.join('?' * len(batch))"


def dotted_name(node: ast.expr) -> str:
    """Return the dotted name of a function, such as "torch.load"."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def uses(tree: ast.AST):
    """Yield imports, calls and options of the source that could run code of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            name = dotted_name(node.func)
            yield name
            yield name.rpartition(".")[2] if name.endswith("extractall") else name
            for option in node.keywords:
                if option.arg in OPTIONS and not is_false(option.value):
                    yield str(option.arg)


def is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def forbidden(tree: ast.AST) -> set[str]:
    return set(uses(tree)) & (MODULES | CALLS | OPTIONS)


def test_the_source_has_no_operation_that_runs_code_of_files():
    uses_by_file = {
        (str(file.relative_to(ROOT)), name)
        for file in FILES
        for name in forbidden(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert uses_by_file == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from zipfile import ZipFile",
        "from torch import load\nfrom os import system\nfrom yaml import load_all",
        "eval('1')",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=trust)",
        "archive.extractall(folder)",
    ],
)
def test_forbidden_operations_are_found(line):
    assert forbidden(ast.parse(line))


def assigned_values(statement: ast.expr, scope: ast.AST) -> list[ast.expr]:
    """Return the expression itself, or the values that its name is assigned in a scope."""
    if not isinstance(statement, ast.Name):
        return [statement]
    return [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(target, ast.Name) and target.id == statement.id for target in node.targets
        )
    ]


def is_fixed(text: ast.expr, scope: ast.AST) -> bool:
    """Return whether a statement is a constant, apart from placeholders."""
    if isinstance(text, ast.Constant):
        return isinstance(text.value, str)
    if not isinstance(text, ast.JoinedStr):
        return False
    inserted = [part.value for part in text.values if isinstance(part, ast.FormattedValue)]
    return all(
        isinstance(value_node, ast.Name)
        and [ast.unparse(value) for value in assigned_values(value_node, scope)] == [PLACEHOLDERS]
        for value_node in inserted
    )


def built_statements(tree: ast.Module):
    """Yield the calls with SQL statements that are not constant."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef) or scope.name in SQL_CALLS:
            continue
        for call in ast.walk(scope):
            if (
                isinstance(call, ast.Call)
                and dotted_name(call.func).rpartition(".")[2] in SQL_CALLS
            ):
                texts = assigned_values(call.args[0], scope) or assigned_values(call.args[0], tree)
                if not texts or not all(is_fixed(text, scope) for text in texts):
                    yield ast.unparse(call)


def test_values_are_parameters_of_sql_statements():
    calls, built = 0, []
    for file in FILES:
        source = file.read_text(encoding="utf-8")
        if "sqlite3" in source or ".execute" in source:
            calls += source.count(".execute") + source.count("._rows(")
            built += built_statements(ast.parse(source))
    assert calls > 20
    assert built == []


@pytest.mark.parametrize(
    "line",
    [
        "database.execute(f'delete from runs where id = {run}')",
        "database.execute('delete from runs where id = ' + run)",
        "database.execute('delete from runs where id = %s' % run)",
        "database.execute('delete from {}'.format(run))",
        "question = f'select {run}'\n    database.execute(question)",
        "self._rows(run)",
        "places = run\n    self._rows(f'select * from runs where id in ({places})')",
    ],
)
def test_built_sql_statements_are_found(line):
    assert list(built_statements(ast.parse(f"def ask(database, run):\n    {line}")))
