"""Kinds of jobs, as frozen values with a title, a stored form and a `run` method."""

from .analysis import AnalyzeJob, SurveyJob, start_analysis, start_survey
from .automatic import ShrinkJob, SmallestJob
from .details import DetailsJob
from .exports import ExportJob, PushJob
from .measuring import MeasureJob, SpeedJob
from .models import (
    CompressJob,
    HealJob,
    PruneLayersJob,
    QuantizeJob,
    ShareJob,
    SliceJob,
)
from .paper_table import TableJob
from .sweep import SweepJob

KINDS = {
    kind.kind: kind
    for kind in (
        AnalyzeJob,
        SurveyJob,
        CompressJob,
        ShrinkJob,
        SmallestJob,
        PruneLayersJob,
        SliceJob,
        ShareJob,
        SweepJob,
        TableJob,
        MeasureJob,
        SpeedJob,
        DetailsJob,
        QuantizeJob,
        HealJob,
        ExportJob,
        PushJob,
    )
}

__all__ = [
    "KINDS",
    "AnalyzeJob",
    "CompressJob",
    "DetailsJob",
    "ExportJob",
    "HealJob",
    "MeasureJob",
    "PruneLayersJob",
    "PushJob",
    "QuantizeJob",
    "ShareJob",
    "ShrinkJob",
    "SliceJob",
    "SmallestJob",
    "SpeedJob",
    "SurveyJob",
    "SweepJob",
    "TableJob",
    "start_analysis",
    "start_survey",
]
