"""The tables of `refit: trained`, of nested checkpoints, of sparse codes and of healing, and their
cells in the record.
"""

from benchmarks import calibration_texts, codes, healing, nested, record, refit


def test_a_cell_is_added_to_the_current_record(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(record, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(record, "stamp", lambda file, name: f"{file.name} {name}")
    record.write_record({"toy": {"cells": {"a": 1}}, "other": {"cells": {}}})
    record.add_cell("toy", "healed", "first", {"before": 3.0})
    entry = record.add_cell("toy", "healed", "second", {"before": 2.0})
    healed = {
        "first": {"before": 3.0, "measured": "healing.py first"},
        "second": {"before": 2.0, "measured": "healing.py second"},
    }
    assert entry == {"cells": {"a": 1}, "healed": healed}
    assert record.read_record() == {"toy": entry, "other": {"cells": {}}}


def test_missing_cells_of_healing_are_dashes() -> None:
    before, after = {"perplexity": 2.5, "error": 0.5}, {"perplexity": 2.25, "error": 0.125}
    cells = {"a3 uniform 0.5": {"before": before, "after": after}}
    (row,) = healing.rows_of(cells)
    assert row == ["a3", "uniform", "–", "–", "2.500 ± 0.500", "2.250 ± 0.125"]


def test_the_table_of_trained_refits_compares_ratios_with_all_cells() -> None:
    cells = {
        f"{pair} params {ratio}": {"perplexity": perplexity, "error": 0.25}
        for ratio in (0.3, 0.5)
        for pair, perplexity in (("fused probed", 4.0), ("a3 uniform", 8.0))
    }
    entry = {"dense": 2.0, "cells": cells, "trained": {}}
    entry["trained"]["fused probed 0.5 trained"] = {"perplexity": 2.0 * 2**0.5, "error": 0.1}
    table = refit.section("toy", entry)
    assert "| fused | probed | trained | – | – | – | 2.828 ± 0.100 |" in table
    assert table.endswith("| trained | 50% | 2.828 ± 0.100 | 0.50 | 0.25 | 0.25 |")
    assert "| trained | 30% |" not in table
    del cells["a3 uniform params 0.5"]
    assert "| trained | 50% |" not in refit.section("toy", entry)


def test_the_table_of_nested_checkpoints_has_a_row_per_refit_and_kind() -> None:
    cells = {
        "svd_llm probed refit=on 0.2 cut": {"perplexity": 2.5, "error": 0.125},
        "svd_llm probed refit=on 0.5 direct": {"perplexity": 3.5, "error": 0.25},
    }
    table = nested.section("toy", {"dense": 2.0, "nested": cells})
    assert "| off | cut | – | – | – | – |" in table
    assert "| on | direct | – | – | – | 3.500 ± 0.250 |" in table
    assert table.endswith("| on | cut | 2.500 ± 0.125 | – | – | – |")


def test_the_table_of_calibration_texts_has_a_row_per_text_and_seed() -> None:
    row = calibration_texts.Row("`llm_surgeon`", {"method": "llm_surgeon"}, "WikiText-2", 1)
    cells = {row.key(0.2): {"perplexity": 2.5, "error": 0.125}}
    table = calibration_texts.section("stories260K", cells)
    assert table.endswith("| `llm_surgeon` | WikiText-2 | 1 | 2.500 ± 0.125 | – |")


def test_the_table_of_sparse_codes_has_a_row_per_form() -> None:
    cells = {"fused probed codes 0.4": {"perplexity": 2.5, "error": 0.125}}
    table = codes.section(cells, (0.2, 0.4))
    assert "| `pairs` | – | – |" in table
    assert "| `codes` | – | 2.500 ± 0.125 |" in table
