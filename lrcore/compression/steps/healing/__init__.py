"""Healing: training of a compressed model towards the dense model (CARE, section 3.5)."""
