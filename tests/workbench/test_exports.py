"""Exports of the page: the folder that loads elsewhere, the stock form, and what is said of both."""

import time

import pytest
from elsewhere import elsewhere

import lrcore
from workbench import text
from workbench.jobs import ENDED
from workbench.session import Session

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
for folder, trust in ((sys.argv[1], True), (sys.argv[2], False)):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    assert torch.isfinite(model(torch.arange(3, 23)[None]).logits).all()
"""


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_RUNS", str(tmp_path / "runs"))
    return Session()


def done(session, job, seconds=60):
    end = time.monotonic() + seconds
    while job.state not in ENDED:
        assert time.monotonic() < end, job
        time.sleep(0.02)
    return job


def test_a_run_is_exported_with_code_and_once_its_ranks_fit_without(session, tiny_llama, story_file, tmp_path):
    recipe = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2, method="a3")
    model = lrcore.load(recipe.model)
    run = session.runs.write("small one", recipe, lrcore.compress(model, recipe))
    session.runs.add_evaluation(run.id, {"perplexity": 5.0, "dense_perplexity": 4.0, "tokens": 9, "protocol": {"data": "stories"}})
    fit = run.report["stock"]
    assert not fit["qualifies"]
    assert text.stock(fit).endswith(f"with {fit['ranks']['0.mlp']} neurons in every MLP, and all else whole.")
    refused = done(session, session.jobs.submit("export", "x", {"run": run.id, "stock": True}))
    assert refused.state == "failed"
    assert "no stock llama" in refused.error
    assert done(session, session.jobs.submit("export", "x", {"run": run.id, "stock": False})).state == "done"
    (written,) = session.runs.results(run.id, "export")
    card = (run.folder / "export" / "README.md").read_text()
    assert written["folder"] == str((run.folder / "export").absolute())
    assert "# small one" in card
    assert "value: 5.0" in card
    assert "| parameters | " in card

    again = recipe.with_(overrides=fit["ranks"])
    even = session.runs.write("even", again, lrcore.compress(model, again))
    assert text.stock(even.report["stock"]) == text.STOCK_YES
    assert done(session, session.jobs.submit("export", "x", {"run": even.id, "stock": True})).state == "done"
    elsewhere(LOAD, str(run.folder.absolute() / "export"), str(even.folder.absolute() / "export-stock"), cwd=tmp_path)


def test_nothing_is_pushed_unless_asked_and_then_the_export_is(session, tiny_llama, story_file, monkeypatch):
    sent = []
    monkeypatch.setattr(lrcore, "push", lambda folder, repo, private: sent.append((folder.name, repo, private)) or "https://hub/me/small")
    recipe = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="svd")
    run = session.runs.write("small", recipe, lrcore.compress(lrcore.load(recipe.model), recipe))
    assert done(session, session.jobs.submit("export", "x", {"run": run.id, "stock": False})).state == "done"
    assert sent == []
    job = done(session, session.jobs.submit("push", "x", {"run": run.id, "stock": False, "repo": "me/small", "private": True}))
    assert (job.state, sent) == ("done", [("export", "me/small", True)])
    assert any("https://hub/me/small" in line for line in job.log)
    assert (run.folder / "export" / "modeling_lowrank.py").is_file()


def test_what_is_said_of_stock_architectures():
    assert text.stock(None) == text.STOCK_UNKNOWN
    assert text.stock({"qualifies": False, "reasons": ["a", "b"], "ranks": None}) == text.STOCK_NO.format("a; b")
