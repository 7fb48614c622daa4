"""Jobs that export, quantize, push and heal runs."""

import json
import time

import pytest
from elsewhere import elsewhere
from page_server import PATIENCE

import lrcore
from lrcore.recipes.history import Healed, StandardFit
from workbench import words
from workbench.jobs import CompressJob, ExportJob, HealJob, PushJob, QuantizeJob
from workbench.state import sweep_runs
from workbench.state.job_record import ENDED
from workbench.state.store import Store
from workbench.tabs.compare import chart, chosen_runs, comparison_table, metrics
from workbench.tabs.runs import derive, details
from workbench.views import run_text

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
for folder, trust in ((sys.argv[1], True), (sys.argv[2], False)):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    assert torch.isfinite(model(torch.arange(3, 23)[None]).logits).all()
"""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def run_job(store, job, seconds=PATIENCE):
    return wait_for_job(store.jobs.submit(job), seconds)


def wait_for_job(job, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while job.state not in ENDED:
        assert time.monotonic() < end, job
        time.sleep(0.02)
    return job


def test_a_run_is_exported_with_code_or_without_code_if_its_ranks_fit(
    store, tiny_llama, story_file, tmp_path
):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2, method="a3"
    )
    model = lrcore.load(recipe.model)
    run = store.runs.write("small one", recipe, lrcore.compress(model, recipe))
    store.runs.add_evaluation(
        run.id,
        {"perplexity": 5.0, "dense_perplexity": 4.0, "tokens": 9, "protocol": {"data": "stories"}},
    )
    fit = run.history[-1].stock
    assert not fit.qualifies
    assert run_text.standard_fit(fit).endswith(
        words.compare_and_runs.STANDARD_WIDTH.format(fit.ranks[0, "mlp"])
    )
    filled = run_job(store, ExportJob(run.id, "transformers-stock"))
    assert any("padded with zeros to their full size" in line for line in filled.log)
    assert run_job(store, ExportJob(run.id, "transformers")).state == "done"
    _, written = store.runs.results(run.id, "export")
    card = (run.folder / "export" / "README.md").read_text()
    assert written["folder"] == str((run.folder / "export").absolute())
    assert "# small one" in card
    assert "value: 5.0" in card
    assert "| parameters | " in card

    adjusted = recipe.with_(rank_overrides=fit.to_dict()["ranks"])
    even = store.runs.write("even", adjusted, lrcore.compress(model, adjusted))
    assert run_text.standard_fit(even.history[-1].stock) == words.compare_and_runs.STANDARD_YES
    assert run_job(store, ExportJob(even.id, "transformers-stock")).state == "done"
    assert details.target_format(store, even.id)["value"] == "transformers"
    elsewhere(
        LOAD,
        str(run.folder.absolute() / "export"),
        str(even.folder.absolute() / "export-stock"),
        cwd=tmp_path,
    )


@pytest.mark.parametrize(
    ("target", "method", "format"),
    [
        ("transformers", "a3", "transformers"),
        ("transformers-stock", "a3", "transformers-stock"),
        ("vllm", "svd_llm", "vllm"),
        ("llama.cpp", "a3", "llama.cpp"),
        ("mla", "care", "mla"),
    ],
)
def test_the_default_format_of_an_export_follows_the_target(
    target, method, format, store, tiny_llama, story_file
):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=2, seq_len=32, ratio=0.2, method=method
    ).with_(target=target)
    run = store.runs.write(target, recipe, lrcore.compress(lrcore.load(recipe.model), recipe))
    chosen = details.target_format(store, run.id)
    assert chosen["value"] == format
    assert details.target_format(store, "gone")["value"] == "transformers"
    assert format in words.compare_and_runs.FORMATS


def test_a_run_is_exported_as_mla_and_as_gguf(store, story_file, tmp_path):
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=32, ratio=0.2, method="svd_llm")
    run = store.runs.write("small", recipe, lrcore.compress(lrcore.load("demo-llama"), recipe))
    for target, name in (("mla", "export-mla"), ("llama.cpp", "export.gguf")):
        job = run_job(store, ExportJob(run.id, target))
        assert job.state == "done", job.error
        assert store.runs.results(run.id, "export")[-1]["folder"] == str(run.folder / name)
        assert any("multiplied out" in line for line in job.log)
    config = json.loads((run.folder / "export-mla" / "config.json").read_text())
    assert config["model_type"] == "youtu"
    assert (run.folder / "export.gguf").read_bytes()[:4] == b"GGUF"


def test_a_quantized_run_is_compared_with_its_original(store, tiny_llama, story_file):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2, method="a3"
    )
    measured = lrcore.EvaluationSettings(str(story_file), samples=2, seq_len=32)
    (first,) = run_job(
        store,
        CompressJob(recipe, evaluation=measured),
    ).result
    job = run_job(store, QuantizeJob(first, 4))
    assert job.state == "done", job.error
    run, made = store.runs.get(first), store.runs.get(job.result[0])
    assert made.name.endswith("4 bit")
    files = [
        sum(file.stat().st_size for file in measured_run.checkpoint.glob("*.safetensors"))
        for measured_run in (run, made)
    ]
    assert files[1] < 0.5 * files[0]
    assert made.account.model.megabytes <= files[1] / 1e6 < 1.2 * made.account.model.megabytes
    assert made.evaluations[0]["perplexity"] != run.evaluations[0]["perplexity"]
    assert made.evaluations[0]["protocol"] == run.evaluations[0]["protocol"]
    table_html = comparison_table.html(metrics.tables([run, made], None, metrics.Results()))
    assert all(
        f"{measured_run.evaluations[0]['perplexity']:.4f}" in table_html
        for measured_run in (run, made)
    )
    fields = [row[0] for row in chosen_runs.all_differences([run, made])]
    assert {"megabytes", "bits"} <= set(fields)
    assert not {"parameters", "method", "ratio"} & set(fields)
    assert (
        len(
            chart.points(
                [run, made], chosen_runs.protocol_of(run, run.evaluations[0]), "megabytes", {}
            )
        )
        == 3
    )
    assert sweep_runs.find_run([made], recipe) is None  # a sweep compresses the model itself
    assert sweep_runs.find_run([made, run], recipe) is run
    repeated = run_job(store, QuantizeJob(made.id, 8))
    assert "is already quantized" in repeated.error
    count = len(store.jobs.all())
    with pytest.raises(lrcore.InputError, match="is already quantized"):
        derive.quantize(store, made.id, 8)
    assert len(store.jobs.all()) == count


def test_an_export_is_pushed_only_on_request(store, tiny_llama, story_file, monkeypatch):
    sent = []
    monkeypatch.setattr(
        lrcore,
        "push",
        lambda folder, repo, private: (
            sent.append((folder.name, repo, private)) or "https://hub/me/small"
        ),
    )
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="svd"
    )
    run = store.runs.write("small", recipe, lrcore.compress(lrcore.load(recipe.model), recipe))
    assert run_job(store, ExportJob(run.id, "transformers")).state == "done"
    assert sent == []
    job = run_job(
        store,
        PushJob(run.id, "transformers", "me/small", True),
    )
    assert (job.state, sent) == ("done", [("export", "me/small", True)])
    assert any("https://hub/me/small" in line for line in job.log)
    assert (run.folder / "export" / "modeling_lowrank.py").is_file()


def test_an_unsupported_standard_architecture_has_a_reason():
    assert run_text.standard_fit(None) == words.compare_and_runs.STANDARD_UNKNOWN
    fit = StandardFit(False, ("a", "b"), None)
    assert run_text.standard_fit(fit) == words.compare_and_runs.STANDARD_NOT.format("a; b")


def test_a_healing_job_resumes_and_its_run_is_compared_with_the_original(
    store, tiny_llama, story_file
):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.3, method="a3"
    )
    measured = lrcore.EvaluationSettings(str(story_file), samples=2, seq_len=32)
    (first,) = run_job(
        store,
        CompressJob(recipe, evaluation=measured),
    ).result
    healing = lrcore.Healing(steps=60, seq_len=32, samples=8, batch=2, lr=1e-3)
    job = store.jobs.submit(HealJob(first, healing))
    run, end = store.runs.get(first), time.monotonic() + PATIENCE
    while not (run.folder / "healing.safetensors").exists() and job.state not in ENDED:
        assert time.monotonic() < end, job
        time.sleep(0.005)
    store.jobs.cancel(job.id)
    wait_for_job(job)
    resumed = wait_for_job(store.jobs.restart(job.id)) if job.state == "cancelled" else job
    assert resumed.state == "done", resumed.error
    made = store.runs.get(resumed.result[0])
    assert made.name == f"{run.name} · healed"
    assert not (run.folder / "healing.safetensors").exists()
    output = made.step(Healed)
    assert output.last_loss < output.first_loss
    assert len(output.cross_entropy) == 60
    assert made.evaluations[0]["perplexity"] < run.evaluations[0]["perplexity"]
    assert run_text.healed(made.history).startswith("Healed for 60 steps on ")
    assert resumed.curve == list(output.cross_entropy)
    assert resumed.outcome.startswith("a3 30% healed → ")
    assert "<polyline" in details.description(made)[0]
    assert run_text.healed(run.history) == ""
    assert {"healing: steps", "healing: lr"} <= {
        row[0] for row in chosen_runs.all_differences([run, made])
    }
