"""The command line, `python -m lrcore`: the same recipe as the page, the same words as the
package.
"""

from .commands import main

__all__ = ["main"]
