"""Search for the largest ratio whose increase in loss stays within a limit."""

import bisect
import math
from collections.abc import Callable, Sequence

from lrcore.compression.pipeline.choose_plan import CurvePoint

MOST_TRIES = 4  # measurements of a search
STEP = 0.005  # ratios are multiples of it, as on the slider
LARGEST = 0.9
MARGIN = 0.1  # distance of a guess from both ends of the interval, as a fraction of it

Increase = Callable[[float], float]  # in loss (nats/token) at a ratio


def largest_ratio(measure: Increase, predict: Increase, limit: float) -> float | None:
    """Return the largest measured ratio within a limit; None if no measured ratio is within it.

    The loss must grow with the ratio. predict: its shape counts, because each measurement rescales
    it.
    """
    low, high, scale, best = 0.0, LARGEST, 1.0, None
    for _ in range(MOST_TRIES):
        if high - low < 2 * STEP:
            break
        ratio = guess(predict, limit / scale, low, high)
        increase, predicted = measure(ratio), predict(ratio)
        if increase <= limit:
            low = best = ratio
        else:
            high = ratio
        if increase > 0 and predicted > 0 and math.isfinite(increase):
            scale = increase / predicted
    return best


def guess(predict: Increase, limit: float, low: float, high: float) -> float:
    """Return the largest ratio between `low` and `high` that is predicted to be within a limit."""
    margin = max(STEP, MARGIN * (high - low))
    first, last = math.ceil((low + margin) / STEP), math.floor((high - margin) / STEP)
    ratios = [round(step * STEP, 3) for step in range(first, max(first, last) + 1)]
    return ratios[max(0, bisect.bisect_right(ratios, limit, key=predict) - 1)]


def interpolated(curve: Sequence[CurvePoint], dense_perplexity: float) -> Increase:
    """Return the predicted increase in loss, linear between the points of a curve and beyond.

    Without points, it is proportional to the ratio.
    """
    points = [(0.0, 0.0)]
    points += [(point.ratio, math.log(point.perplexity / dense_perplexity)) for point in curve]
    if not curve:
        points.append((1.0, 1.0))

    def predict(ratio: float) -> float:
        last = bisect.bisect_left(points, ratio, 1, len(points) - 1, key=lambda point: point[0])
        (x0, y0), (x1, y1) = points[last - 1], points[last]
        return y0 + (y1 - y0) * (ratio - x0) / (x1 - x0)

    return predict
