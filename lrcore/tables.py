"""Tables as data frames.

pandas comes when the first is asked for: it takes 65 MB, which a model on disk needs while it is
calibrated.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    """One row per dict, one column per key."""
    import pandas as pd

    return pd.DataFrame(rows)
