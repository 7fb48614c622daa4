"""Invalid flags on the command line: one error line, exit code 2, nothing written.

Each case of a table contains one error.
"""

import pytest

pytestmark = pytest.mark.one_in(3)

LARGE = 10**12
FLAGS = {
    "evaluate": (
        *(["--samples", count] for count in ("0", "-1", "x")),
        *(["--seq-len", length] for length in ("0", "1", "-5", str(LARGE))),
        *(["--batch", size] for size in ("0", "-1", "x")),
        *(["--protocol", "strided", "--stride", stride] for stride in ("0", "-1", "99999")),
        ["--protocol", "mine"],
        ["--sampling", "last"],
        ["--sampling", "random", "--seed", "-1"],
        ["--data", "storys"],
        ["--dtype", "int8"],
        ["--device", "gpu"],
        ["--revision", "main"],
        ["--nothing"],
        ["--samples"],
        ["more"],
    ),
    "spectra": (
        ["--threshold", "0"],
        ["--threshold", "2"],
        ["--threshold", "nan"],
    ),
    "allocate": (
        ["--rank-override", "0.mlp=x"],
        ["--rank-override", "0.mlp"],
        ["--component-ratio", "qk"],
        ["--component-ratio", "qk=nan"],
        ["--option", "scores"],
        ["--policy-option", "x=1"],
        ["--temperature", "nan"],
        ["--samples", str(LARGE)],
        ["--recipe", "/no/recipe.yaml"],
    ),
    "generate": (
        [],
        ["--prompt", ""],
        *(["--prompt", "Once", "--max-new-tokens", count] for count in ("0", "-1")),
        *(["--prompt", "Once", "--temperature", temperature] for temperature in ("-1", "nan")),
        *(
            ["--prompt", "Once", "--temperature", "1", "--top-p", share]
            for share in ("0", "2", "nan")
        ),
    ),
    "tasks": (
        ["--items", "0"],
        ["--items", "-1"],
        ["--task", "nothing"],
        ["--task", "/no/task.jsonl"],
        ["--batch", "0"],
    ),
    "cost": (["--context", "0"], ["--context", "-1"], ["--context", str(LARGE)]),
    "compare": ([], ["--batch", "2"]),
    "answers": (["--prompts", "/no/prompts.txt"], []),
    "quantize": (
        *(["OUT", "--bits", bits] for bits in ("5", "0", "x")),
        *(["OUT", "--group", group_size] for group_size in ("0", "-1", "7")),
        [],
    ),
    "prune-layers": (
        *(["OUT", "--layers", count] for count in ("0", "-1", "3", "99")),
        ["OUT", "--layers", "1", "--criterion", "luck"],
        ["OUT"],
    ),
    "slice": (
        *(["OUT", "--ratio", ratio] for ratio in ("0", "1", "nan", "-1", "0.99")),
        ["OUT", "--rotations", "some"],
        *(["OUT", "--multiple", multiple] for multiple in ("0", "-1", "99")),
    ),
    "heal": (
        ["--out", "OUT"],
        ["--out", "OUT", "--steps", "0"],
        ["--out", "OUT", "--rotary-channel", "3"],
    ),
    "export": (["OUT", "--standard", "--result", "/no/result.json"], []),
    "runs": (["show", "nobody"], ["nothing"], ["--folder"]),
    "cache": (["--limit", "much"], ["--limit", "-1GB"], ["--clear", "--limit", "1GB"]),
}
COMMANDS = [(command, flags) for command, rows in FLAGS.items() for flags in rows]
TEXT_COMMANDS = ("evaluate", "spectra", "allocate", "prune-layers", "slice")


@pytest.mark.parametrize(("command", "flags"), COMMANDS, ids=str)
def test_invalid_flags_are_refused(
    command, flags, refused, tiny_llama, quick, tmp_path, monkeypatch, story_file
):
    monkeypatch.setenv("LRCORE_RUNS", str(story_file.parent / "runs"))
    model = [] if command in ("runs", "cache") else [tiny_llama]
    arguments = [tmp_path / "out" if flag == "OUT" else flag for flag in flags]
    refused(command, *model, *(quick if command in TEXT_COMMANDS else []), *arguments)


HEALING_FLAGS = (
    *(["--samples", count] for count in ("0", "-1")),
    *(["--seq-len", length] for length in ("1", "0", str(LARGE))),
    *(["--lr", rate] for rate in ("0", "-1", "nan", "inf")),
    *(["--beta", beta] for beta in ("-1", "nan", "inf")),
    *(["--temperature", temperature] for temperature in ("0", "nan", "inf")),
    *(["--batch", size] for size in ("0", "-3")),
    ["--train", "some"],
    ["--test-samples", "-1"],
    ["--data", "storys"],
    ["--teacher", "/no/teacher"],
    ["--seed", "-1"],
)


@pytest.mark.parametrize("flags", HEALING_FLAGS, ids=str)
def test_invalid_healing_flags_are_refused(flags, refused, compressed, tmp_path):
    valid = {"--samples": 4, "--seq-len": 16, "--steps": 2, "--batch": 2, "--test-samples": 0}
    flag_values = valid | {flags[0]: flags[1]}
    refused(
        "heal",
        compressed,
        "--out",
        tmp_path / "out",
        *(x for pair in flag_values.items() for x in pair),
    )


@pytest.mark.parametrize("target", ["file", "folder", "below a file"])
def test_output_paths_that_cannot_be_written_are_refused(
    target, refused, tiny_llama, quick, tmp_path
):
    (tmp_path / "file").write_text("diary")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "diary").touch()
    out = tmp_path / ("file/out" if target == "below a file" else target)
    refused("compress", tiny_llama, "--out", out, *quick)
