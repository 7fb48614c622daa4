"""Queueing what the tabs show: at once what takes little, on request what a policy measures."""

from collections.abc import Hashable
from dataclasses import dataclass

import lrcore

from ..job_record import JobRecord
from ..keys import analysed, unmeasured
from ..store import Store
from .analyses import AnalyseJob, SurveyJob


@dataclass(frozen=True)
class Unmeasured:
    """Evidence that a policy needs and that is not here.

    seconds: about how long measuring takes; 0 where it is on disk, None where nobody knows.
    running: whether it is being measured, or will be.
    """

    seconds: float | None
    running: bool


def unmeasured_evidence(store: Store, recipe: lrcore.Recipe) -> Unmeasured | None:
    """What a recipe's policy lacks to make a plan, where it lacks nothing else; None otherwise."""
    if not lrcore.evidence_key(recipe) or store.peek_factors(recipe) is not None:
        return None
    factors = store.peek_factors(unmeasured(recipe))
    if factors is None:
        return None
    job, pace = AnalyseJob(analysed(recipe)), store.peek_pace(recipe)
    running = any(record.job == job for record in store.jobs.waiting())
    tokens = lrcore.evidence_tokens(factors, recipe)
    return Unmeasured(pace and pace * tokens if tokens else 0.0, running)


def start_analysis(
    store: Store, recipe: lrcore.Recipe, browser: Hashable = None, measure: bool = True
) -> JobRecord | None:
    """Queue what the Spectra and Allocation tabs need and lack; None where all of it is here.

    browser: who asks; what it asked for before and nobody else wants is dropped. measure: also
    what the policy measures on the model, which may take minutes; without it only where that is on
    disk, or under way.
    """
    if not measure and not at_hand(store, recipe):
        recipe = unmeasured(recipe)
    lacking = store.peek_analysis(recipe) is None or store.peek_factors(recipe) is None
    record = store.jobs.submit(AnalyseJob(analysed(recipe))) if lacking else None
    if record is not None:
        record.browsers.add(browser)
    for other in store.jobs.waiting() if browser is not None else ():
        if other is not record and browser in other.browsers:
            other.browsers.discard(browser)
            if not other.browsers:
                store.jobs.cancel(other.id)
    return record


def at_hand(store: Store, recipe: lrcore.Recipe) -> bool:
    """Whether the factors are here with what the policy measures, or that is on disk or under
    way.
    """
    lacking = unmeasured_evidence(store, recipe)
    if lacking is None:
        return store.peek_factors(recipe) is not None
    return lacking.running or lacking.seconds == 0


def start_survey(store: Store, recipe: lrcore.Recipe) -> JobRecord:
    """Queue the factors of every method for these settings."""
    return store.jobs.submit(SurveyJob(recipe.with_(overrides={})))
