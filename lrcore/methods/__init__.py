"""The methods, one row each.

A method is a pure function from one layer and its moments to factors that serve every rank.
"""

from ..errors import as_name, unknown
from . import (
    a3,
    aa_svd,
    bolaco,
    care,
    clover,
    flap,
    fused,
    latentllm,
    llm_pruner,
    llm_surgeon,
    mha2mla,
    modegpt,
    svd,
    svd_llm,
    transmla,
)
from .factors import LayerFactors, spectrum, truncate
from .method import COMPONENTS, MATRICES, Method

__all__ = [
    "COMPONENTS",
    "MATRICES",
    "METHODS",
    "LayerFactors",
    "Method",
    "find_method",
    "spectrum",
    "truncate",
]

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        svd.METHOD,
        svd_llm.METHOD,
        aa_svd.METHOD,
        bolaco.METHOD,
        a3.METHOD,
        clover.METHOD,
        modegpt.METHOD,
        latentllm.METHOD,
        care.METHOD,
        mha2mla.METHOD,
        transmla.METHOD,
        fused.METHOD,
        flap.METHOD,
        llm_pruner.METHOD,
        llm_surgeon.METHOD,
    )
}


def find_method(name: str) -> Method:
    """The row of a method. Raises InputError with the nearest name for an unknown one."""
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", as_name(name), METHODS)
    return METHODS[name]
