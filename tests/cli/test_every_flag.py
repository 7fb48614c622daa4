"""Invalid values for all flags and arguments of all commands, as defined in the parser. A new flag
fails here until the table has invalid values for it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from tiny_models import family_folder

import lrcore
from lrcore.cli.commands import app
from lrcore.runs.runs import Runs

pytestmark = pytest.mark.one_in(3)

LARGE, MISSING = str(10**12), "/no/such/place"


def parsers(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the words of a command and its parser."""
    if path:
        yield " ".join(path), group
    for name, inner in getattr(group, "commands", {}).items():
        yield from parsers(inner, (*path, name))


PARSERS = dict(parsers(typer.main.get_command(app)))
NAMED = {  # parameters by command and by flag or name of the argument
    command: {parameter.opts[0]: parameter for parameter in parser.params}
    for command, parser in PARSERS.items()
}
SWITCHES = [
    (command, flag)
    for command, parameters in NAMED.items()
    for flag, parameter in parameters.items()
    if getattr(parameter, "is_flag", False)
]
VALUES = [
    (command, name)
    for command, parameters in NAMED.items()
    for name in parameters
    if (command, name) not in SWITCHES
]

# Valid arguments and flags of each command; `stage` makes the files.
TEXT = {"--data": "TEXT", "--samples": "2", "--seq-len": "16"}
VALID: dict[str, tuple[list[str], dict[str, str]]] = {
    "calibrate": (["MODEL"], TEXT),
    "spectra": (["MODEL"], TEXT),
    "allocate": (["MODEL"], TEXT),
    "compress": (["MODEL"], TEXT | {"--out": "OUT"}),
    "generate": (["MODEL"], {"--prompt": "Once", "--temperature": "1", "--max-new-tokens": "2"}),
    "answers": (["MODEL"], {"--prompts": "PROMPTS", "--temperature": "1", "--max-new-tokens": "2"}),
    "evaluate": (["MODEL"], TEXT | {"--sampling": "random"}),
    "compare": (["MODEL", "MODEL"], TEXT | {"--sampling": "random"}),
    "tasks": (["MODEL"], {"--items": "2"}),
    "cost": (["MODEL"], {"--context": "16"}),
    "sweep": (["RECIPE"], {"--out": "OUT"}),
    "prune-layers": (["MODEL", "OUT"], TEXT | {"--layers": "1"}),
    "prune-experts": (["EXPERTS", "OUT"], TEXT | {"--experts": "1", "--criterion": "loss"}),
    "slice": (["MODEL", "OUT"], TEXT),
    "share": (["MODEL", "OUT"], TEXT),
    "quantize": (["MODEL", "OUT"], TEXT | {"--group": "8", "--quantizer": "gptq"}),
    "sparsify": (["MODEL", "OUT"], TEXT | {"--pattern": "unstructured"}),
    "heal": (
        ["SMALL"],
        TEXT | {"--out": "OUT", "--samples": "4", "--steps": "2", "--batch": "2"}
        | {"--test-samples": "2", "--train": "lora"},
    ),
    "export": (["SMALL", "OUT"], {}),
    "runs show": (["kept"], {}),
    "runs add": (["SMALL"], {}),
    "runs rename": (["kept", "other"], {}),
    "runs tag": (["kept", "good"], {}),
    "runs track": (["project", "kept"], {}),
    "runs delete": (["kept"], {}),
    "runs compare": (["kept", "kept"], {}),
}  # fmt: skip

FOLDERS_FIRST = (MISSING, "TEXT", "EMPTY", "", "a" * 5000)
# Invalid values by flag or argument, for all commands or for a single command.
INVALID: dict[str, tuple[str, ...]] = {
    "model": (*FOLDERS_FIRST, "demo-lama"),
    "models": (*FOLDERS_FIRST, "demo-lama"),
    "out": ("TEXT", "TEXT/below", "FULL", "a" * 5000),
    "sweep recipe": (MISSING, "MODEL", "TEXT", "", "a" * 5000),
    "run": ("nobody", "", "a" * 5000),
    "runs": ("nobody", "", "a" * 5000),
    "checkpoint": (MISSING, "TEXT", "EMPTY", "MODEL", "a" * 5000),
    "runs rename name": ("", "  "),
    "tags": ("", "  "),
    "project": ("", "  "),
    "--recipe": (MISSING, "MODEL", "TEXT", "", "a" * 5000),
    "--revision": ("main", ""),
    "--dtype": ("int8", "float33", ""),
    "--device": ("gpu", "cuda:99", "meta", ""),
    "--data": (MISSING, "EMPTY", "storys", "", "a" * 5000),
    "--text-field": ("content", "a/b", ""),  # a text file has no fields
    # larger numbers mean the complete text
    "evaluate --samples": ("0", "-1", "1.5", "x", "nan", ""),
    "compare --samples": ("0", "-1", "1.5", "x", "nan", ""),
    "--samples": ("0", "-1", "1.5", "x", "nan", "", LARGE),
    "--seq-len": ("0", "1", "-5", "1.5", "x", "inf", "", LARGE),
    "--sampling": ("last", ""),
    "generate --seed": ("1.5", "x", "", str(2**70)),
    "answers --seed": ("1.5", "x", "", str(2**70)),
    "--seed": ("-1", "1.5", "x", "", str(2**70)),
    "--bos": ("sometimes", ""),
    "--cluster": ("nowhere", ""),
    "--gpus": ("x", "0", "-1", "1.5", "0,0", "9999", ""),
    "--threshold": ("0", "1.1", "-1", "nan", "inf", "x", ""),
    "--method": ("a4", ""),
    "--policy": ("fair", ""),
    "--ratio": ("0", "1", "-0.5", "nan", "inf", "x", ""),
    "--budget": ("parms", ""),
    "--temperature": ("-1", "nan", "inf", "x", ""),
    "--rounding": ("up", ""),
    "--multiple": ("0", "-1", "1.5", "x", "", LARGE),
    "--rank-multiple": ("0", "-1", "1.5", "x", "", LARGE),
    "--component-ratio": ("qk", "qk=2", "qk=nan", "qk=x", "=", "zz=0.1", ""),
    "--option": ("scores", "scores=x", "nothing=1", "=", ""),
    "--policy-option": ("x", "nothing=1", "=", ""),
    "--rank-override": ("0.mlp", "0.mlp=x", "0.mlp=0", "9.mlp=4", "0.mpl=4", "=", ""),
    "--target": ("lama.cpp", ""),
    "--what-if": ("Lama-3-8B", MISSING, "TEXT", "a" * 5000),
    # the context of a named model may be arbitrary
    "allocate --context": ("0", "-1", "1.5", "x", ""),
    "--context": ("0", "-1", "1.5", "x", "", LARGE),
    "--calibration-mode": ("both", ""),
    "--refit": ("maybe", ""),
    "--out": ("TEXT", "TEXT/below", "FULL", "a" * 5000),
    "sweep --out": ("TEXT", "TEXT/below", "a" * 5000),  # an existing folder is resumed
    "--trackio": ("", "  "),
    "--prompt": ("", "once " * 500),
    "--prompts": (MISSING, "MODEL", "EMPTY", "", "a" * 5000),
    "--max-new-tokens": ("0", "-1", "1.5", "x", ""),
    "--top-p": ("0", "2", "-1", "nan", "x", ""),
    "--csv": ("FULL", "TEXT/below", "a" * 5000),
    "--html": ("FULL", "TEXT/below", "a" * 5000),
    "--protocol": ("strid", ""),
    "--stride": ("0", "-1", "1.5", "x", "", LARGE),
    "--kv-bits": ("0", "3", "16", "-8", "x", ""),
    "--batch": ("0", "-1", "1.5", "x", ""),
    "--items": ("0", "-1", "1.5", "x", "", LARGE),
    "--shots": ("-1", "1.5", "x", "", LARGE),
    "--task": (
        "storys",
        MISSING,
        MISSING + ".jsonl",
        "MODEL",
        "a" * 5000,
        "needle-0",
        "needle-x",
        "lm-eval:",
        "",
    ),
    "--dense": (MISSING, "demo-lama", "TEXT", ""),
    "--methods": ("a4", "a3,a4", "", ","),
    "--policies": ("fair", ""),
    "--ratios": ("x", "0.1,x", "2", "nan", ""),
    "--calibration-sets": ("storys", MISSING + ".txt", "storys+stories", ""),
    "--sample-counts": ("x", "0", "1.5", ""),
    "--seeds": ("x", "-1", ""),
    "--temperatures": ("x", "0", "nan", ""),
    "--rows": (MISSING, "MODEL", "TEXT", "", "a" * 5000),
    "--cross": ("storys,stories", "stories", ""),
    "--model": (MISSING, "demo-lama", ""),
    "--layers": ("0", "-1", "3", "99", "1.5", "x", ""),
    "--criterion": ("luck", ""),
    "--experts": ("0", "-1", "4", "99", "1.5", "x", ""),
    "--candidates": ("0", "-1", "1.5", "x", ""),
    "--rotations": ("some", ""),
    "--group": ("0", "-1", "1.5", "x", ""),
    "--nested": ("x", "0.3,x", "", ",", "0.1", "1", "nan"),
    "--bits": ("0", "5", "-8", "16", "x", ""),
    "--quantizer": ("gptk", ""),
    "--pattern": ("4:2", ""),
    "--density": ("0", "1", "-1", "nan", "inf", "x", ""),
    "--steps": ("0", "-1", "1.5", "x", ""),
    "--lr": ("0", "-1", "nan", "inf", "x", ""),
    "--beta": ("-1", "nan", "inf", "x", ""),
    "--rotary-channel": ("3", "-1", "1.5", "x", ""),
    "--train": ("some", ""),
    "--lora-rank": ("0", "-1", "1.5", "x", ""),
    "--lora-alpha": ("0", "-1", "1.5", "x", ""),
    "--test": (MISSING, "storys", ""),
    "--test-samples": ("-1", "1.5", "x", ""),
    "--teacher": (MISSING, "demo-lama", "TEXT", ""),
    "--format": ("ggml", ""),
    "--type": ("q9_9", ""),
    "--push-to-hub": ("no name", "a/b/c", ""),
    "--result": (MISSING, "MODEL", "TEXT", "", "a" * 5000),
    "--limit": ("much", "-1GB", "nan", "5XB", ""),
    "--folder": ("TEXT", "TEXT/below", "a" * 5000),
}
# Suggestions for misspelled names.
MISSPELLED = {
    "demo-lama": "demo-llama",
    "float33": "float32",
    "storys": "stories",
    "a4": "a3",
    "parms": "params",
    "lama.cpp": "llama.cpp",
    "Lama-3-8B": "Llama-3-8B",
    "strid": "strided",
    "gptk": "gptq",
    "wandda": "wanda",
}
# Parameters that accept any text; without a match, the list is empty.
ANY_TEXT = {("runs", "--tag"), ("runs add", "--name")}


def key_of(command: str, name: str) -> str:
    """Return the key of the invalid values of a flag or argument."""
    command_key = f"{command} {name}"
    return command_key if command_key in INVALID else name


# The first command with a flag or argument and its values, which tries all of them.
FIRST = {key_of(*pair): pair[0] for pair in reversed(VALUES)}


def invalid_values(command: str, name: str, try_all: bool = True) -> tuple[str, ...]:
    """Return the invalid values of a flag or argument; without `try_all`, only the first one,
    unless no other command tries all.
    """
    values = INVALID.get(key_of(command, name), ())
    return values if try_all or FIRST[key_of(command, name)] == command else values[:1]


@pytest.fixture(scope="module")
def stage(tiny_llama, compressed, story_file, tmp_path_factory):
    """Return the paths for the words of the table."""
    folder = tmp_path_factory.mktemp("stage")
    (folder / "prompts.txt").write_text("Once upon a time\n")
    (folder / "empty").mkdir()
    (folder / "full").mkdir()
    (folder / "full" / "diary").touch()
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
    (folder / "recipe.json").write_text(recipe.to_json())
    Runs(folder / "runs").add(compressed, "kept")
    return {
        "MODEL": str(tiny_llama),
        "EXPERTS": str(family_folder("mixtral", tiny_llama, folder / "experts")),
        "SMALL": str(compressed),
        "TEXT": str(story_file),
        "PROMPTS": str(folder / "prompts.txt"),
        "RECIPE": str(folder / "recipe.json"),
        "EMPTY": str(folder / "empty"),
        "FULL": str(folder / "full"),
        "RUNS": str(folder / "runs"),
    }


def line(command: str, paths: dict[str, str], changed: dict[str, str]) -> list[str]:
    """Return the words of a command; changed: values of flags, and of arguments by name."""
    arguments, options = VALID.get(command, ([], {}))
    argument_names = [
        name for name, parameter in NAMED[command].items() if not name.startswith("-")
    ]
    arguments = [
        changed.get(argument_names[min(i, len(argument_names) - 1)], argument)
        if argument_names
        else argument
        for i, argument in enumerate(arguments)
    ]
    options = options | {name: value for name, value in changed.items() if name.startswith("-")}
    words = [*command.split(), *(f"{name}={value}" for name, value in options.items())]
    words += ["--yes"] if command == "runs delete" else []
    words += ["--", *arguments] if arguments else []
    return [resolve_path(word, paths) for word in words]


def resolve_path(word: str, paths: dict[str, str]) -> str:
    """Replace the name of a path in a word of the table, alone or after "=", by the path."""
    flag, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    first, slash, remainder = value.partition("/")
    return f"{flag}{equals}{paths.get(first, first)}{slash}{remainder}"


def test_each_flag_and_argument_has_invalid_values():
    without = [pair for pair in VALUES if not invalid_values(*pair) and pair not in ANY_TEXT]
    assert without == []
    used = {key for command, name in VALUES for key in (name, f"{command} {name}")}
    assert [name for name in INVALID if name not in used] == []
    assert set(ANY_TEXT) <= set(VALUES)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "try_all", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["first", "all"]
)
@pytest.mark.parametrize(("command", "name"), [case for case in VALUES if case not in ANY_TEXT])
def test_invalid_values_are_refused(command, name, try_all, refused, stage, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_RUNS", stage["RUNS"])
    paths = stage | {"OUT": str(tmp_path / "out")}
    for value in invalid_values(command, name, try_all):
        message = refused(*line(command, paths, {name: value}))
        assert value not in MISSPELLED or f"Did you mean '{MISSPELLED[value]}'?" in message


@pytest.mark.parametrize("command", PARSERS)
def test_flags_without_value_switches_with_value_and_unknown_flags_are_refused(command, refused):
    words = command.split()
    for name in NAMED[command]:
        if (command, name) in SWITCHES:
            refused(*words, f"{name}=5")
        elif name.startswith("-") and FIRST[key_of(command, name)] == command:
            refused(*words, name)
    assert "--json" in refused(*words, "--jsn")


@pytest.mark.parametrize("command", [name for name in VALID if name != "sweep"])
def test_missing_arguments_are_refused(command, refused):
    refused(*command.split())


def test_unknown_commands_are_refused(refused):
    assert "compress" in refused("compres")
    assert "show" in refused("runs", "shwo")
    refused("")
