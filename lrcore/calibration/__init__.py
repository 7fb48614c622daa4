"""What the calibration text says of a model: moments, and, only when asked for, gradients and
outliers.
"""
