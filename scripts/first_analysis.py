"""Write the analysis that the page opens with: `python scripts/first_analysis.py`.

It contains the analysis of a demo model and a built-in text by the form's defaults, and the
measurements of policy `probed`, also for a budget of bytes. Run it again if the defaults or the
file formats change.
"""

import os
import shutil
import tempfile

import lrcore
from lrcore.system.cache import SHIPPED
from workbench.state.store import FIRST_ANALYSIS
from workbench.widgets.form import START

PROBED = START.with_(policy="probed")
BYTES = PROBED.with_(budget="bytes")


def main() -> None:
    shutil.rmtree(SHIPPED, ignore_errors=True)  # shipped measurements would be read
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRCORE_CACHE"] = folder
        model = lrcore.load(START.model, dtype=START.dtype)
        calibration = lrcore.calibrate(model, START)
        lrcore.analyze(model, calibration).write(FIRST_ANALYSIS)
        factors = lrcore.factorize(model, calibration, START.method)
        factors = lrcore.measure_evidence(model, factors, BYTES)
        lrcore.choose_plan(model, factors, PROBED)
        shutil.copytree(os.path.join(folder, "probes"), SHIPPED / "probes")


if __name__ == "__main__":
    main()
