"""The kinds of jobs: frozen values with a `title`, a stored form and a `run`."""

from collections.abc import Hashable

import lrcore

from ..job_record import JobRecord
from ..keys import analysed
from ..store import Store
from .analyses import AnalyseJob, SurveyJob
from .derived import HealJob, QuantiseJob
from .details import DetailsJob
from .exports import ExportJob, PushJob
from .measuring import MeasureJob, SpeedJob
from .models import CompressJob, ShortenJob, SliceJob
from .sweep import SweepJob

KINDS = {
    kind.kind: kind
    for kind in (
        AnalyseJob,
        SurveyJob,
        CompressJob,
        ShortenJob,
        SliceJob,
        SweepJob,
        MeasureJob,
        SpeedJob,
        DetailsJob,
        QuantiseJob,
        HealJob,
        ExportJob,
        PushJob,
    )
}

__all__ = [
    "KINDS",
    "AnalyseJob",
    "CompressJob",
    "DetailsJob",
    "ExportJob",
    "HealJob",
    "MeasureJob",
    "PushJob",
    "QuantiseJob",
    "ShortenJob",
    "SliceJob",
    "SpeedJob",
    "SurveyJob",
    "SweepJob",
    "start_analysis",
    "start_survey",
]


def start_analysis(
    store: Store, recipe: lrcore.Recipe, browser: Hashable = None
) -> JobRecord | None:
    """Queue what the Spectra and Allocation tabs need and lack; None where all of it is here.

    browser: who asks; what it asked for before and nobody else wants is dropped.
    """
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


def start_survey(store: Store, recipe: lrcore.Recipe) -> JobRecord:
    """Queue the factors of every method for these settings."""
    return store.jobs.submit(SurveyJob(recipe.with_(overrides={})))
