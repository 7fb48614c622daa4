"""What a slider move costs against the decomposition behind it, and how long the first spectra
take.
"""

from functools import partial

import lrcore
from lrcore.methods import METHODS

from .page import empty_cache, machine, median_seconds, note, table, timed, write_section


def speed(only: list[str]) -> None:
    """What a slider move costs against the decomposition behind it, and how long the first
    spectra take.
    """
    parts, rows = [f"{machine()}.", ""], []
    for name in [name for name in lrcore.DEMO_MODELS if not only or name in only]:
        with empty_cache():
            sentence, own = of_model(name)
        parts, rows = [*parts, sentence, ""], rows + own
    header = [
        "model",
        "method",
        "factor, ms",
        "allocate (a slider move), ms",
        "allocate + truncate + write, ms",
        "factor / slider move",
    ]
    write_section("speed", "\n".join([*parts, table(header, rows)]))


def of_model(name: str) -> tuple[str, list[list[str]]]:
    """What calibration and spectra take, and a row for every method."""
    model, recipe = lrcore.load(name), lrcore.Recipe(model=name)
    calibration, calibrated = timed(lambda: lrcore.calibrate(model, recipe))
    _, analysed = timed(lambda: lrcore.analyse(model, calibration))
    rows = []
    for method in METHODS:
        own = recipe.with_(method=method)
        factor = median_seconds(partial(lrcore.factorise, model, calibration, method), 3)
        factors = lrcore.factorise(model, calibration, method)
        try:
            lrcore.allocate(factors, own)
        except lrcore.InputError as error:  # it cannot remove so much
            note(f"speed {name} {method} is left out: {error}")
            continue
        allocate = median_seconds(partial(lrcore.allocate, factors, own))
        cut = median_seconds(partial(lrcore.compress, model, own, factors))
        shown = f"{factor * 1e3:.0f}", f"{allocate * 1e3:.1f}", f"{cut * 1e3:.0f}"
        rows.append([name, method, *shown, f"{factor / allocate:.0f}"])
        note(f"speed {rows[-1]}")
    sentence = (
        f"{name}: calibration on 64 x 256 tokens {calibrated:.1f} s, all spectra {analysed:.1f} s."
    )
    return sentence, rows
