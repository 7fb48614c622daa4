"""A compressed model trained for some steps against its dense model (CARE, section 3.5)."""
