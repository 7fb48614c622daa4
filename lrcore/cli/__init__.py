"""The command line, `python -m lrcore`: the same recipes as the page, the same names as the
package.
"""

from .commands import main

__all__ = ["main"]
