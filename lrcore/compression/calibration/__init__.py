"""Statistics of a calibration text: moments, gradients and outliers."""
