"""The tabs, in the order they are shown.

A tab is a module with TITLE and build(session), and one row here.
"""

from . import allocation, compare, compress, runs, spectra

TABS = (spectra, allocation, compress, compare, runs)
