"""The intended endpoints for scripts, and as tools for agents where gradio[mcp] is installed.

Long ones go through the same queue as the page and wait for their turn.
"""

import time
from typing import Any

import gradio as gr

import lrcore

from .job_record import ENDED, JobRecord
from .session import Session
from .sweeps import evaluation_of


def build(session: Session) -> None:
    def analyse(recipe: dict, threshold: float = 0.9) -> list[dict]:
        """Rank measures of every layer, component and matrix, raw and activation-aware.

        Args:
            recipe: fields of a recipe as a mapping, such as {"model": "demo-llama", "data":
            "stories", "samples": 64, "method": "a3",
                "policy": "uniform", "ratio": 0.2}; those left out keep their defaults.
            threshold: the share of the energy, between 0 and 1, that the energy rank holds.
        """
        asked = read(recipe)
        finished(session.start_analysis(asked))
        return session.analysis(asked).table(threshold).to_dict("records")

    def allocate(recipe: dict) -> dict:
        """Ranks that a recipe gives, and what the model would weigh: {"summary": ..., "ranks":
        [...]}.

        Args:
            recipe: fields of a recipe as a mapping, such as {"model": "demo-llama", "data":
            "stories", "samples": 64, "method": "a3",
                "policy": "uniform", "ratio": 0.2}; those left out keep their defaults.
        """
        asked = read(recipe)
        finished(session.start_analysis(asked))
        session.factors(asked)
        plan = spoken(lambda: session.plan(asked))
        return {"summary": plan.summary(), "ranks": plan.table().to_dict("records")}

    def compress(recipe: dict, name: str = "") -> str:
        """Compress by a recipe, keep the run, and return its id.

        Args:
            recipe: fields of a recipe as a mapping, such as {"model": "demo-llama", "data":
            "stories", "samples": 64, "method": "a3",
                "policy": "uniform", "ratio": 0.2}; those left out keep their defaults.
            name: what the run is called on the page; made from the recipe where it is empty.
        """
        asked = read(recipe)
        spec = {"recipe": asked.to_dict(), "name": name[:80], "evaluation": None}
        return finished(
            session.jobs.submit(
                "compress", f"{asked.method} {asked.ratio:.0%} on {asked.model}", spec
            )
        ).result[0]

    def evaluate(run: str, data: str = "stories", samples: int = 32, seq_len: int = 256) -> dict:
        """Perplexity of a kept run and of its dense model, with the protocol.

        Args:
            run: id of the run.
            data: built-in name, file, or hub data set; its test split is read.
            samples: windows to measure; 0: the whole test split.
            seq_len: tokens per window.
        """
        settings = {
            "data": data,
            "samples": samples or None,
            "seq_len": seq_len,
            "sampling": "first",
            "seed": 0,
        }
        kept = spoken(lambda: session.runs.get(run))
        finished(
            session.jobs.submit(
                "measure", f"Measure {kept.name}", {"runs": [run], "evaluation": settings}
            )
        )
        return evaluation_of(session.runs.get(run), lrcore.EvaluationSettings(**settings))

    def compare(
        runs: list[str],
        prompt: str,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> dict:
        """Continuations of one prompt by the dense model ("dense") and by each run (its id).

        Args:
            runs: ids of the runs.
            prompt: the text to continue.
            max_new_tokens: the most tokens that each model adds.
            temperature: of the sampling; 0 takes the likeliest token.
            seed: of the sampling, the same for every model.
        """
        kept = [spoken(lambda run=run: session.runs.get(run)) for run in runs]
        models = ({"dense": session.dense(kept[0].recipe)} if kept else {}) | {
            run.id: session.small(run) for run in kept
        }
        return {
            name: spoken(
                lambda m=m: lrcore.generate(m, prompt, max_new_tokens, temperature, 1.0, seed)
            )
            for name, m in models.items()
        }

    for endpoint in (analyse, allocate, compress, evaluate, compare):
        gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=4)


def read(recipe: dict) -> lrcore.Recipe:
    return spoken(lambda: lrcore.Recipe.from_dict(recipe))


def spoken(do: Any) -> Any:
    """What `do` gives; wrong input becomes the one kind of error whose words reach a caller."""
    try:
        return do()
    except lrcore.InputError as error:
        raise gr.Error(str(error), print_exception=False) from None


def finished(job: JobRecord | None) -> JobRecord | None:
    """Wait for a job. Raises gr.Error with its words where it did not end well."""
    while job is not None and job.state not in ENDED:
        time.sleep(0.1)
    if job is not None and job.state != "done":
        raise gr.Error(job.error or f"The job was {job.state}.", print_exception=False)
    return job
