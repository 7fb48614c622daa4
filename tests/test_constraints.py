"""Versions in constraints.txt, one for each requirement and within its range."""

import importlib.metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FILES = ("requirements.txt", *(f"requirements-{name}.txt" for name in ("mcp", "search", "dev")))


def requirements(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


PINNED = {
    requirement.name: requirement.specifier for requirement in requirements("constraints.txt")
}


@pytest.mark.parametrize("name", FILES)
def test_each_requirement_has_a_pinned_version_in_its_range(name):
    for required in requirements(name):
        (pin,) = PINNED[required.name.lower()]
        assert pin.operator == "=="
        assert required.specifier.contains(pin.version)


def test_installed_versions_are_the_pinned_ones():
    different_versions = {
        name: importlib.metadata.version(name)
        for name, pin in PINNED.items()
        if not pin.contains(importlib.metadata.version(name))
    }
    assert not different_versions, (
        f"{different_versions}: after all tests passed, run scripts/constraints.py"
    )
