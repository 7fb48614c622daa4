"""What the page says of memory and of the device."""

MEMORY = "Compressing takes about {} of memory beyond the dense model."
MEMORY_FREE = "Compressing takes about {} of memory beyond the dense model; {} are free."
MEMORY_SHORT = (
    "**It will not fit.** Use fewer or shorter windows (Calibration text), refit off, independent "
    "calibration, a smaller data type, or close other programs."
)
FREE_OF = "{:.3g} of {:.3g} GB memory free"
