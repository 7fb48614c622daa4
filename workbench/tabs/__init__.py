"""The tabs, in the order they are shown.

A tab is a module or package with TITLE and build(page, store, tab), and one row here.
"""

from . import allocation, compare, compress, experiments, runs, spectra

TABS = (spectra, allocation, compress, compare, runs, experiments)
