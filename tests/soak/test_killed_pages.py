"""The page of a server that is killed during a job: the next server offers the job again, and ends
with the runs and tables of an undisturbed one.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from page_killing import Act, Page, killed, undisturbed
from visitor import Visitor

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
ROUNDS, KILLS = 30, 3  # repetitions per job, and kills in a row
ACTS = ("compress", "sweep", "evaluate", "heal", "quantise", "export")
STEPS = 52  # of healing, which saves its state after 50


@pytest.fixture(scope="module")
def model(tiny_llama, tmp_path_factory) -> Path:
    """Return the tiny model with a context that is long enough for healing on the page."""
    folder = shutil.copytree(tiny_llama, tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    return folder


@pytest.fixture(scope="module")
def compression(model, story_file) -> Act:
    """Return the compression of the tiny model with an evaluation."""

    def starts(page: Visitor) -> None:
        fill(page, model, story_file)
        page.fills({"run-name": "its name"})
        page.does("start", "click")

    return Act("compress", starts)


@pytest.fixture(scope="module")
def acts(compression, model, story_file, tmp_path_factory) -> dict[str, Act]:
    """Return the actions by name, see ACTS: two start in an empty folder, the others with a run."""
    workspace = Page(tmp_path_factory.mktemp("run") / "here")
    undisturbed(workspace, compression)
    for record in (workspace.folder / "runs" / ".jobs").glob("*.json"):
        record.unlink()

    def sweeps(page: Visitor) -> None:
        fill(page, model, story_file)
        page.fills({"sweep-methods": ["svd", "a3"], "sweep-ratios": "0.2, 0.4"})
        page.does("start-sweep", "click")

    def quantizes(page: Visitor) -> None:
        opens(page)
        page.does("quantise", "click")

    def heals(page: Visitor) -> None:
        opens(page)
        page.fills({"heal-steps": STEPS})
        page.does("heal", "click")

    def exports(page: Visitor) -> None:
        opens(page)
        page.does("export", "click")

    def measures(page: Visitor) -> None:
        page.does("runs-table", "choose", event_data={"runs": [run_of(page)]})
        fill(page, model, story_file)
        page.fills({"measure-samples": 4})
        page.does("measure-runs", "click")

    later = {"evaluate": measures, "heal": heals, "quantise": quantizes, "export": exports}
    made = {name: Act(name, starts, workspace.folder) for name, starts in later.items()}
    return {"compress": compression, "sweep": Act("sweep", sweeps)} | made


def fill(page: Visitor, model, text) -> None:
    """Fill the form with a small calibration and a small evaluation."""
    recipe = {"model": str(model), "data": str(text), "samples": 2, "seq_len": 16}
    page.fills({f"field-{name}": value for name, value in recipe.items()})
    page.fills({"measure-samples": 2, "measure-seq-len": 16})


def run_of(page: Visitor) -> str:
    """Return the id of the initial run."""
    return page.runs(sort="date", falling=False)["html"].partition("data-run='")[2].split("'")[0]


def opens(page: Visitor) -> None:
    """Open the initial run."""
    page.does("runs-table", "open", event_data={"run": run_of(page)})


@pytest.mark.soak
def test_the_page_of_a_killed_server_ends_like_an_undisturbed_one(compression, tmp_path):
    workspace, chance = Page(tmp_path / "here"), random.Random(17)
    outcome = killed(workspace, compression, undisturbed(workspace, compression), chance, 2)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.kills


@pytest.mark.soak
@pytest.mark.parametrize("name", ACTS)
def test_many_kills_of_the_page(acts, name, tmp_path, capsys):
    workspace, chance = Page(tmp_path / "here"), random.Random(f"{SEED} {name}")
    expected = undisturbed(workspace, acts[name])
    rounds = range(max(1, round(ROUNDS * SHARE)))
    outcomes = [killed(workspace, acts[name], expected, chance, KILLS) for _ in rounds]
    with capsys.disabled():
        print(
            f"\nseed {SEED}: {sum(outcome.kills for outcome in outcomes)} kills of the page: {name}"
        )
    wrong = [line for outcome in outcomes for line in outcome.wrong]
    assert not wrong, "\n".join(wrong)
