"""Budgets, rank allocation and rank plans."""
