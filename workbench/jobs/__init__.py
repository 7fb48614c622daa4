"""The kinds of jobs: frozen values with a `title`, a stored form and a `run`."""

from .analyses import AnalyseJob, SurveyJob
from .derived import HealJob, QuantiseJob
from .details import DetailsJob
from .exports import ExportJob, PushJob
from .measuring import MeasureJob, SpeedJob
from .models import CompressJob, ShareJob, ShortenJob, SliceJob
from .starting import Unmeasured, start_analysis, start_survey, unmeasured_evidence
from .sweep import SweepJob
from .table import TableJob

KINDS = {
    kind.kind: kind
    for kind in (
        AnalyseJob,
        SurveyJob,
        CompressJob,
        ShortenJob,
        SliceJob,
        ShareJob,
        SweepJob,
        TableJob,
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
    "ShareJob",
    "ShortenJob",
    "SliceJob",
    "SpeedJob",
    "SurveyJob",
    "SweepJob",
    "TableJob",
    "Unmeasured",
    "start_analysis",
    "start_survey",
    "unmeasured_evidence",
]
