"""The tables of `refit: trained` and of healing, and the record that they are made from."""

import sys
from pathlib import Path

SCRIPTS = str(Path(__file__).resolve().parents[1] / "scripts")
sys.path.insert(0, SCRIPTS)
from bench import healed, quality, trained  # noqa: E402 (its folder is no package)

sys.path.remove(SCRIPTS)


def test_a_cell_is_added_to_what_the_record_has_by_then(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(quality, "RECORD", tmp_path / "record.json")
    quality.keep({"toy": {"cells": {"a": 1}}, "other": {"cells": {}}})
    quality.keep_cell("toy", "healed", "one", {"before": 3.0})
    own = quality.keep_cell("toy", "healed", "two", {"before": 2.0})
    assert own == {"cells": {"a": 1}, "healed": {"one": {"before": 3.0}, "two": {"before": 2.0}}}
    assert quality.read_record() == {"toy": own, "other": {"cells": {}}}


def test_a_row_of_healing_says_what_is_not_measured() -> None:
    before, after = {"perplexity": 2.5, "error": 0.5}, {"perplexity": 2.25, "error": 0.125}
    cells = {"a3 uniform 0.5": {"before": before, "after": after}}
    (row,) = healed.rows_of(cells)
    assert row == ["a3", "uniform", "–", "–", "2.500 ± 0.500", "2.250 ± 0.125"]


def test_a_table_of_training_compares_where_all_is_measured() -> None:
    cells = {
        f"{pair} params {ratio}": {"perplexity": perplexity, "error": 0.25}
        for ratio in (0.3, 0.5)
        for pair, perplexity in (("fused probed", 4.0), ("a3 uniform", 8.0))
    }
    own = {"dense": 2.0, "cells": cells, "trained": {}}
    own["trained"]["fused probed 0.5 trained"] = {"perplexity": 2.0 * 2**0.5, "error": 0.1}
    table = trained.section("toy", own)
    assert "| fused | probed | trained | – | – | – | 2.828 ± 0.100 |" in table
    assert table.endswith("| 50% | 2.828 ± 0.100 | 0.50 | 0.25 | 0.25 |")
    assert "\n| 30% |" not in table
    del cells["a3 uniform params 0.5"]
    assert "\n| 50% |" not in trained.section("toy", own)
