"""Included sweeps for the tables of papers: each row gives results on a tiny model, or an error
message.
"""

import pytest

import lrcore
from lrcore.runs.sweep import included_sweeps

pytestmark = pytest.mark.one_in(2)

SMALL = {"samples": 2, "seq_len": 16, "steps": 1, "batch": 1}  # settings of healing
# Messages for a tiny Llama of three layers, by table.
REFUSED = {
    "care-table1": "fold=8 does not divide the 4 rotary pairs",
    "modegpt-table2": "Cannot drop 3 of the 3 decoder layers",
}
TABLES = [name for name in included_sweeps() if name != "latentllm-table4"]  # needs images


def small(step):
    """Return a step, or a list of steps, with minimal settings and only the first of several
    ratios.
    """
    if isinstance(step, list):
        return [small(part) for part in step]
    ((kind, settings),) = step.items()
    settings = {name: _first(name, value) for name, value in settings.items()}
    settings |= SMALL if kind == "heal" else {}
    settings |= {"group": 16} if kind == "quantize" else {}
    return {kind: settings}


def _first(name, value):
    return value[:1] if name in ("ratio", "kept") and isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_each_row_gives_results_or_an_error_message(name, tiny_llama, story_file, tmp_path):
    shipped = lrcore.Sweep.read(name).to_dict()
    text = str(story_file)  # the calibration sets of a table are unchanged
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
        values["tasks"] = [task | {"items": 2} for task in shipped["tasks"]]
    sweep = lrcore.Sweep.from_dict(values)
    rows = lrcore.run_sweep(lrcore.load(str(tiny_llama)), sweep, tmp_path)
    made = [row for row in rows if row.error is None]
    assert all((row.perplexity or row.accuracy) is not None for row in made)
    assert len({(row.title, row.measured_on) for row in rows}) == len(rows)
    failed = [row for row in rows if row.error]
    assert bool(failed) == (name in REFUSED)
    for row in failed:
        assert REFUSED[name] in row.error
