"""Write what the page opens with: `python scripts/first_analysis.py`.

The analysis of the form's defaults, a demo model and a built-in text, and what policy `probed`
measures on the model. To be made anew when one of these, or what the files mean, has changed.
"""

import os
import shutil
import tempfile

import lrcore
from lrcore.cache import SHIPPED
from workbench.first_analysis import FILE
from workbench.form import START

PROBED = START.with_(policy="probed")


def main() -> None:
    shutil.rmtree(SHIPPED, ignore_errors=True)  # or it would be read instead of measured
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRCORE_CACHE"] = folder
        model = lrcore.load(START.model, dtype=START.dtype)
        calibration = lrcore.calibrate(model, START)
        lrcore.analyse(model, calibration).write(FILE)
        factors = lrcore.factorise(model, calibration, START.method)
        factors = lrcore.measure_evidence(model, factors, PROBED)
        lrcore.settle(model, factors, PROBED)
        shutil.copytree(os.path.join(folder, "probes"), SHIPPED / "probes")


if __name__ == "__main__":
    main()
