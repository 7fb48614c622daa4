"""Which ink is read best on a colour of the scale Viridis."""

# ten colours from 0 to 1, evenly spaced; those between are mixed
VIRIDIS = (
    (68, 1, 84),
    (72, 40, 120),
    (62, 73, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (110, 206, 88),
    (181, 222, 43),
    (253, 231, 37),
)
BLACK, WHITE, GREY = "#000000", "#ffffff", "#767676"  # grey: read on white and on black
EVEN = 0.179  # relative luminance on which black and white have the same contrast, 4.6:1


def viridis(share: float) -> tuple[float, ...]:
    """Red, green and blue in [0, 255] at `share` of the scale, in [0, 1]."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    return tuple(
        a + (place - low) * (b - a) for a, b in zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True)
    )


def luminance(colour: tuple[float, ...]) -> float:
    """Relative luminance as WCAG 2 defines it, in [0, 1]."""
    parts = [one / 255 for one in colour]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(share: float) -> str:
    """Black or white, whichever has more contrast: at least 4.5:1."""
    return BLACK if luminance(viridis(share)) > EVEN else WHITE
