"""The table of compression methods.

A method is a pure function from a layer and moments to factors that serve every rank.
"""

from ..system.errors import as_name, unknown
from . import (
    a3,
    aa_svd,
    bolaco,
    care,
    clover,
    compot,
    flap,
    fused,
    kfac_svd,
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
        kfac_svd.METHOD,
        aa_svd.METHOD,
        bolaco.METHOD,
        compot.METHOD,
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
    """Return the row of a method.

    Raises InputError with the nearest name if the method is unknown.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", as_name(name), METHODS)
    return METHODS[name]
