"""What the page says of several runs: differences, protocols, sweeps that go on, the front."""

import json
from types import SimpleNamespace

import lrcore
from workbench import plots, text, work
from workbench.measure import Measure
from workbench.tabs import compare


def run_of(name, recipe, **summary):
    return lrcore.Run(name, name, 0.0, None, recipe, {"summary": summary}, (), [])


def test_differences_of_recipes_and_of_what_came_out():
    one = run_of("a", lrcore.Recipe(), parameters=10_000, megabytes=1.5)
    two = run_of("b", lrcore.Recipe(ratio=0.4), parameters=8_000, megabytes=1.5)
    assert compare.all_differences([one, two]) == [["ratio", "0.2", "0.4"], ["parameters", "10,000", "8,000"]]
    assert compare.all_differences([one, one]) == []


def test_the_protocol_stands_by_the_figure():
    plain = {"source": "stories/test", "windows": 32, "seq_len": 256, "tokens": 8192, "sampling": "first", "seed": None}
    assert text.protocol(plain) == text.protocol(plain | {"name": "windows"})
    assert "gptq-2048" in text.protocol(plain | {"name": "gptq-2048"})
    assert "stride 64" in text.protocol(plain | {"name": "strided", "stride": 64})


def test_settings_of_a_protocol_are_those_that_evaluate_takes(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    for protocol in lrcore.PROTOCOLS:
        settings = Measure.settings(True, str(story_file), 1, 32, protocol)
        assert lrcore.evaluate(model, **settings).protocol["name"] == protocol
    assert "protocol" not in Measure.settings(True, "stories", 1, 32)


def test_a_sweep_names_every_cell_and_finds_those_that_are_there():
    spec = {"recipe": lrcore.Recipe().to_dict(), "methods": ["a3", "svd"], "ratios": [0.1, 0.2], "evaluation": {"samples": 2}}
    assert len(work.sweep_of(spec).cells()) == 4
    spec |= {"policies": ["uniform", "softmax"], "calibration_sets": ["stories", "python-docs"]}
    cells = work.sweep_of(spec).cells()
    assert len(cells) == 16
    there = SimpleNamespace(recipe=cells[3], evaluations=[{"settings": {"samples": 2}}])
    assert work.made([there], cells[3], {"samples": 2}) is there
    assert work.made([there], cells[3], None) is there
    assert work.made([there], cells[3], {"samples": 3}) is None
    assert work.made([there], cells[4], None) is None


def test_the_front_joins_what_no_other_run_beats():
    points = [
        {"name": str(i), "method": "a", "x": x, "y": y, "note": "", "id": ""} for i, (x, y) in enumerate([(1, 5), (2, 3), (3, 4), (4, 1)])
    ]
    line = json.loads(plots.scatter(points, "size"))["data"][0]
    assert (line["x"], line["y"]) == ([1, 2, 4], [5, 3, 1])
