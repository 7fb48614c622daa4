"""Time of a slider move compared with the decomposition, and of the first spectra."""

from functools import partial

import lrcore
from lrcore.methods import METHODS
from lrcore.models.load import DEMO_MODELS

from .machine import machine
from .report import log, table, write_section
from .timing import empty_cache, median_seconds, timed


def speed(models: list[str]) -> None:
    """Time decomposition, allocation and compression of all methods on the demo models."""
    parts, rows = [f"{machine()}.", ""], []
    for name in [name for name in DEMO_MODELS if not models or name in models]:
        with empty_cache():
            sentence, model_rows = measure_model(name)
        parts, rows = [*parts, sentence, ""], rows + model_rows
    header = [
        "model",
        "method",
        "factor, ms",
        "allocate (slider move), ms",
        "allocate + truncate + write, ms",
        "factor / slider move",
    ]
    write_section("speed", "\n".join([*parts, table(header, rows)]))


def measure_model(name: str) -> tuple[str, list[list[str]]]:
    """Return the times of calibration and spectra, and a row per method."""
    model, recipe = lrcore.load(name), lrcore.Recipe(model=name)
    calibration, calibrated = timed(lambda: lrcore.calibrate(model, recipe))
    _, analyzed = timed(lambda: lrcore.analyze(model, calibration))
    rows = []
    for method in METHODS:
        method_recipe = recipe.with_(method=method)
        factor = median_seconds(partial(lrcore.factorize, model, calibration, method), 3)
        factors = lrcore.factorize(model, calibration, method)
        try:
            lrcore.allocate(factors, method_recipe)
        except lrcore.InputError as error:  # the ratio is too high for the method
            log(f"speed {name} {method} is skipped: {error}")
            continue
        allocate = median_seconds(partial(lrcore.allocate, factors, method_recipe))
        cut = median_seconds(partial(lrcore.compress, model, method_recipe, factors))
        times = f"{factor * 1e3:.0f}", f"{allocate * 1e3:.1f}", f"{cut * 1e3:.0f}"
        rows.append([name, method, *times, f"{factor / allocate:.0f}"])
        log(f"speed {rows[-1]}")
    sentence = (
        f"{name}: calibration on 64 x 256 tokens {calibrated:.1f} s, all spectra {analyzed:.1f} s."
    )
    return sentence, rows
