"""What a slider move costs against the decomposition behind it, and how long the first spectra
take.
"""

import os
import tempfile
import time

import lrcore
from lrcore.methods import METHODS

from .page import machine, median_seconds, note, table, write_section


def speed(only: list[str]) -> None:
    """What a slider move costs against the decomposition behind it, and how long the first
    spectra take.
    """
    parts, rows = [f"{machine()}.", ""], []
    for name in [name for name in lrcore.DEMO_MODELS if not only or name in only]:
        model, recipe = lrcore.load(name), lrcore.Recipe(model=name)
        begin = time.perf_counter()
        calibration = fresh_calibration(model, recipe)
        calibrated = time.perf_counter()
        lrcore.analyse(model, calibration)
        analysed = time.perf_counter()
        for method in METHODS:
            own = recipe.with_(method=method)
            factor = median_seconds(
                lambda m=model, c=calibration, k=method: lrcore.factorise(m, c, k), 3
            )
            factors = lrcore.factorise(model, calibration, method)
            try:
                lrcore.allocate(factors, own)
            except lrcore.InputError as error:  # it cannot remove so much
                note(f"speed {name} {method} is left out: {error}")
                continue
            allocate = median_seconds(lambda f=factors, r=own: lrcore.allocate(f, r))
            cut = median_seconds(lambda m=model, f=factors, r=own: lrcore.compress(m, r, f))
            rows.append(
                [
                    name,
                    method,
                    f"{factor * 1e3:.0f}",
                    f"{allocate * 1e3:.1f}",
                    f"{cut * 1e3:.0f}",
                    f"{factor / allocate:.0f}",
                ]
            )
            note(f"speed {rows[-1]}")
        parts += [
            f"{name}: calibration on 64 x 256 tokens {calibrated - begin:.1f} s, all spectra "
            f"{analysed - calibrated:.1f} s.",
            "",
        ]
    header = [
        "model",
        "method",
        "factor, ms",
        "allocate (a slider move), ms",
        "allocate + truncate + write, ms",
        "factor / slider move",
    ]
    write_section("speed", "\n".join([*parts, table(header, rows)]))


def fresh_calibration(model, recipe):
    """A calibration that no cache can shorten."""
    kept, os.environ["LRCORE_CACHE"] = os.environ.get("LRCORE_CACHE"), tempfile.mkdtemp()
    try:
        return lrcore.calibrate(model, recipe)
    finally:
        os.environ.pop("LRCORE_CACHE")
        if kept:
            os.environ["LRCORE_CACHE"] = kept
