"""Tables as data frames.

pandas is imported with the first one: it takes 65 MB, which an offloaded model needs during
calibration.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    """One row per dict, one column per key."""
    import pandas as pd

    return pd.DataFrame(rows)
