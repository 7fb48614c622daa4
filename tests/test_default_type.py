"""The default dtype of torch, which a network of 16 bits built in another thread changes for all
threads.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import torch

import lrcore

# functions that create tensors of the default dtype
MAKERS = {"zeros", "ones", "empty", "eye", "rand", "randn", "linspace", "logspace"}


def calls_without_dtype(tree: ast.AST) -> Iterator[ast.Call]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        of_torch = isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"
        if (
            of_torch
            and call.func.attr in MAKERS
            and not any(k.arg == "dtype" for k in call.keywords)
        ):
            yield call


def test_tensors_in_the_core_are_created_with_a_dtype() -> None:
    folder = Path(lrcore.__file__).parent
    unnamed_calls = [
        f"{path.relative_to(folder)}:{call.lineno}"
        for path in folder.rglob("*.py")
        for call in calls_without_dtype(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not unnamed_calls


def test_duo_svd_gives_the_same_ranks_with_a_different_default_dtype() -> None:
    model = lrcore.load("demo-llama")
    recipe = lrcore.Recipe(method="a3", policy="duo_svd", ratio=0.3)
    factors = lrcore.prepare(model, recipe)
    ranks = lrcore.allocate(factors, recipe).ranks
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert lrcore.allocate(factors, recipe).ranks == ranks
    finally:
        torch.set_default_dtype(torch.float32)
