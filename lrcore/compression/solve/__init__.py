"""Factors, rank allocation, refit and writing of single layers."""
