"""Finished work that stays: runs, sweeps of many recipes, and the tables and pages made of them."""
