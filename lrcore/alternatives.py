"""Alternatives: where a method offers a part of a layer in several forms, a plan takes one of them.

A part is what some slots approximate together (QK, OV or the MLP of a layer), a form is how: heads
narrowed and neurons removed, or every matrix as a low-rank pair. The slots of a plan are those of
the forms that it takes; the dense part costs the same in every form.
"""

from collections.abc import Mapping

from .spectra import Slot, Spectrum

Part = tuple[int, str]  # (layer index, part)
Forms = dict[str, dict[Slot, Spectrum]]  # the slots of a part by form, in the method's order


def by_part(spectra: Mapping[Slot, Spectrum]) -> dict[Part, Forms]:
    """The slots of every part by form. A slot that is no form of a part is a part of its own."""
    parts: dict[Part, Forms] = {}
    for slot, s in spectra.items():
        part, form = (slot[1], "") if s.form is None else s.form
        parts.setdefault((slot[0], part), {}).setdefault(form, {})[slot] = s
    return parts


def first_forms(spectra: Mapping[Slot, Spectrum]) -> dict[Slot, Spectrum]:
    """The slots of the first form of every part."""
    firsts = (next(iter(forms.values())) for forms in by_part(spectra).values())
    return {slot: s for own in firsts for slot, s in own.items()}
