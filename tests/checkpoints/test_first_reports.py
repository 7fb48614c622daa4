"""A checkpoint and a database of runs that were written before reports had a version: `care` with a
rotary channel, healed, in 4 bits; and runs that were compressed, shortened, and sliced.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import lrcore
from lrcore.account import OF_PLANS

FOLDER = Path(__file__).parents[1] / "fixtures" / "first_reports"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.fixture
def model():
    return lrcore.load(str(FOLDER / "checkpoint"))


@pytest.fixture
def runs(tmp_path):
    return lrcore.Runs(shutil.copytree(FOLDER / "runs", tmp_path / "runs"))


def test_a_checkpoint_is_the_model_it_was(model):
    assert model.fingerprint == EXPECTED["fingerprint"]
    with torch.inference_mode():
        logits = model.network(input_ids=torch.arange(12).view(1, -1)).logits[0, -1, :8]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED["logits"]))


def test_its_report_becomes_a_history(model):
    kinds = [type(step) for step in model.history]
    assert kinds == [lrcore.Compressed, lrcore.Healed, lrcore.Quantised]
    compressed, healed, quantised = model.history
    assert (compressed.recipe.method, compressed.recipe.budget) == ("care", "kv")
    assert [row.component for row in model.ranks] == ["k", "v"] * 3
    assert compressed.calibration["mode"] == "independent"
    assert (healed.rotary_channel, healed.train, len(healed.cross_entropy)) == (2, "latents", 2)
    assert (quantised.bits, quantised.group) == (4, 16)
    assert model.base.name == "dense"
    account = model.account
    assert account.model.parameters == model.size.parameters
    assert account.model.kv_bytes_per_token == model.size.kv_bytes
    assert account.model.megabytes == pytest.approx(model.size.megabytes)
    assert (account.requested, account.budget, account.bits) == (0.4, "kv", 4)
    report = json.loads((FOLDER / "checkpoint" / "report.json").read_text())
    # what plans did not say of themselves then is None
    summary = dict.fromkeys(OF_PLANS) | report["summary"]
    summary["requested"] = summary["asked"]
    summary["removed_flops"] = 1 - summary["flops_per_token"] / summary["dense_flops_per_token"]
    for name, value in account.to_dict().items():
        assert value == (
            pytest.approx(summary[name]) if isinstance(value, float) else summary[name]
        )


def test_it_is_saved_in_the_new_form_and_goes_on(model, tmp_path):
    back = lrcore.load(str(lrcore.save(model, tmp_path / "again")))
    assert back.provenance == model.provenance
    assert json.loads((tmp_path / "again" / "report.json").read_text())["version"] == 2
    lrcore.export(model, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "### Healing" in card
    assert "quantised to 4 bits" in card
    with pytest.raises(lrcore.InputError, match="quantised already"):
        lrcore.quantise(model, 8, 16)


def test_a_database_keeps_its_runs(runs):
    result = {run.name: run for run in runs.all()}
    made = {name: [step.kind for step in run.history] for name, run in result.items()}
    assert made == {
        "care, healed, 4 bit": ["compressed", "healed", "quantised"],
        "without a layer": ["shortened"],
        "sliced": ["sliced", "quantised"],
        "a3": ["compressed"],
        "a3 on fewer layers": ["compressed"],
    }
    assert all(run.account is not None and run.base is not None for run in result.values())
    assert [result[name].method for name in ("a3", "sliced", "without a layer")] == [
        "a3",
        "slice",
        "shorten",
    ]
    healed = result["care, healed, 4 bit"]
    assert (healed.tags, healed.evaluations[0]["perplexity"]) == (("old",), 61.5)
    assert runs.samples(healed.id)[0]["text"] == " upon"
    sliced = result["sliced"].step(lrcore.Sliced)
    assert sliced.requested == 0.2
    assert sliced.removed == pytest.approx(result["sliced"].account.removed_params)


def test_folders_without_a_row_are_taken_up(runs):
    names = {run.name: run.provenance for run in runs.all()}
    for file in runs.folder.glob("runs.sqlite*"):
        file.unlink()
    again = lrcore.Runs(runs.folder)
    assert {run.name: run.provenance for run in again.all()} == names
