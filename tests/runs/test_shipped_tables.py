"""Tables of papers that ship, every row of them on a tiny model: figures, or one sentence."""

import pytest

import lrcore

SMALL = {"samples": 2, "seq_len": 16, "steps": 1, "batch": 1}  # of healings
# what a tiny Llama of three layers is refused, by the table
REFUSED = {
    "care-table1": "4 rotary pairs make no whole groups of 8",
    "modegpt-table2": "3 decoder layers; 3 of them",
}
TABLES = [name for name in lrcore.shipped_sweeps() if name != "latentllm-table4"]  # of images


def small(step):
    """A step, or a list of them, with the least to do: of several shares the first."""
    if isinstance(step, list):
        return [small(one) for one in step]
    ((kind, given),) = step.items()
    given = {name: _first(name, value) for name, value in given.items()}
    given |= SMALL if kind == "heal" else {}
    given |= {"group": 16} if kind == "quantise" else {}
    return {kind: given}


def _first(name, value):
    return value[:1] if name in ("ratio", "kept") and isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_row_gives_figures_or_says_why_not(name, tiny_llama, story_file, tmp_path):
    shipped = lrcore.Sweep.read(name).to_dict()
    text = str(story_file)  # the calibration sets of a table stay
    values = shipped | {
        "model": str(tiny_llama),
        "data": text,
        "samples": 2,
        "seq_len": 32,
        "ratios": shipped["ratios"][:1],
        "rows": [small(row) for row in shipped["rows"]],
        "evaluation": [{"data": text, "samples": 1, "seq_len": 32}],
    }
    if "tasks" in shipped:
        values["tasks"] = [one | {"items": 2} for one in shipped["tasks"]]
    sweep = lrcore.Sweep.from_dict(values)
    rows = lrcore.run_sweep(lrcore.load(str(tiny_llama)), sweep, tmp_path)
    made = [row for row in rows if row.error is None]
    assert all((row.perplexity or row.accuracy) is not None for row in made)
    assert len({(row.title, row.measured_on) for row in rows}) == len(rows)
    failed = [row for row in rows if row.error]
    assert bool(failed) == (name in REFUSED)
    for row in failed:
        assert REFUSED[name] in row.error
