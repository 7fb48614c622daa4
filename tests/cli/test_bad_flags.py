"""Bad flags, through the command line: one sentence, exit code 2, nothing written.

Each case of a table has one thing wrong.
"""

import pytest

LARGE = 10**12
FLAGS = {
    "evaluate": (
        *(["--samples", one] for one in ("0", "-1", "x")),
        *(["--seq-len", one] for one in ("0", "1", "-5", str(LARGE))),
        *(["--batch", one] for one in ("0", "-1", "x")),
        *(["--protocol", "strided", "--stride", one] for one in ("0", "-1", "99999")),
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
        *(["--prompt", "Once", "--max-new-tokens", one] for one in ("0", "-1")),
        *(["--prompt", "Once", "--temperature", one] for one in ("-1", "nan")),
        *(["--prompt", "Once", "--temperature", "1", "--top-p", one] for one in ("0", "2", "nan")),
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
        *(["OUT", "--bits", one] for one in ("5", "0", "x")),
        *(["OUT", "--group", one] for one in ("0", "-1", "7")),
        [],
    ),
    "prune-layers": (
        *(["OUT", "--layers", one] for one in ("0", "-1", "3", "99")),
        ["OUT", "--layers", "1", "--criterion", "luck"],
        ["OUT"],
    ),
    "slice": (
        *(["OUT", "--ratio", one] for one in ("0", "1", "nan", "-1", "0.99")),
        ["OUT", "--rotations", "some"],
        *(["OUT", "--multiple", one] for one in ("0", "-1", "99")),
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
OF_TEXT = ("evaluate", "spectra", "allocate", "prune-layers", "slice")


@pytest.mark.parametrize(("command", "flags"), COMMANDS, ids=str)
def test_flags(command, flags, refused, tiny_llama, quick, tmp_path, monkeypatch, story_file):
    monkeypatch.setenv("LRCORE_RUNS", str(story_file.parent / "runs"))
    model = [] if command in ("runs", "cache") else [tiny_llama]
    own = [tmp_path / "out" if one == "OUT" else one for one in flags]
    refused(command, *model, *(quick if command in OF_TEXT else []), *own)


HEALINGS = (
    *(["--samples", one] for one in ("0", "-1")),
    *(["--seq-len", one] for one in ("1", "0", str(LARGE))),
    *(["--lr", one] for one in ("0", "-1", "nan", "inf")),
    *(["--beta", one] for one in ("-1", "nan", "inf")),
    *(["--temperature", one] for one in ("0", "nan", "inf")),
    *(["--batch", one] for one in ("0", "-3")),
    ["--train", "some"],
    ["--test-samples", "-1"],
    ["--data", "storys"],
    ["--teacher", "/no/teacher"],
    ["--seed", "-1"],
)


@pytest.mark.parametrize("flags", HEALINGS, ids=str)
def test_healings(flags, refused, compressed, tmp_path):
    good = {"--samples": 4, "--seq-len": 16, "--steps": 2, "--batch": 2, "--test-samples": 0}
    given = good | {flags[0]: flags[1]}
    refused(
        "heal", compressed, "--out", tmp_path / "out", *(x for pair in given.items() for x in pair)
    )


@pytest.mark.parametrize("place", ["file", "folder", "below a file"])
def test_places_to_write_to(place, refused, tiny_llama, quick, tmp_path):
    (tmp_path / "file").write_text("diary")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "diary").touch()
    out = tmp_path / ("file/out" if place == "below a file" else place)
    refused("compress", tiny_llama, "--out", out, *quick)
