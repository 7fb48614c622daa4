"""Options of the command line, derived from the fields of dataclasses."""

import inspect
from dataclasses import asdict, fields

import pytest
import typer

from lrcore import EvaluationSettings, GenerationSettings, Healing, Recipe
from lrcore.cli.commands import app
from lrcore.cli.flags import flags
from lrcore.system.settings import settings_of

COMMANDS = {
    name: command
    for name, command in typer.main.get_command(app).commands.items()
    if not hasattr(command, "commands")
}


def options(command: str) -> set[str]:
    return {flag for parameter in COMMANDS[command].params for flag in parameter.opts}


def named(kind: type) -> set[str]:
    return {
        f"--{setting.flag or name.replace('_', '-')}"
        for name, setting in settings_of(kind).items()
        if (kind, name) != (Recipe, "model")
    }


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("compress", Recipe),
        ("evaluate", EvaluationSettings),
        ("heal", Healing),
        ("generate", GenerationSettings),
    ],
)
def test_each_field_has_an_option(command, kind):
    assert len(settings_of(kind)) == len(fields(kind))
    assert named(kind) <= options(command)


def test_a_command_has_the_options_of_its_groups():
    assert {"--data", "--seq-len", "--recipe"} <= options("calibrate")
    assert not {"--method", "--refit", "--ratio"} & options("calibrate")
    assert "--ratio" in options("allocate")
    assert not {"--refit", "--calibration-mode"} & options("allocate")
    assert "--recipe" not in options("prune-layers")


def test_each_option_has_a_help_text_with_its_default():
    for command in COMMANDS.values():
        for option in command.params:
            assert option.help, (command.name, option.name)
    helps = {option.name: option.help for option in COMMANDS["compress"].params}
    assert helps["samples"].endswith(f"Default: {Recipe.samples}.")
    assert "random or first" in helps["sampling"]


def test_a_command_receives_dataclasses():
    received = []

    @flags(recipe=("passes",))
    def command(recipe: Recipe, settings: Healing, extra: int = 3) -> None:
        received.append((recipe, settings, extra))

    parameters = inspect.signature(command).parameters
    assert list(parameters)[:2] == ["calibration_mode", "refit"]
    assert parameters["steps"].default == Healing.steps
    values = asdict(Healing(steps=5, data="a.jsonl")) | {"text_field": "content"}
    command(calibration_mode=None, refit="on", **values, extra=4)
    expected = Healing(steps=5, data="a.jsonl#content")
    assert received == [(Recipe(refit="on"), expected, 4)]


def test_commands_have_at_most_six_parameters():
    for name, command in COMMANDS.items():
        written = inspect.signature(inspect.unwrap(command.callback), follow_wrapped=False)
        assert len(written.parameters) <= 6, name
