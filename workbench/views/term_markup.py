"""Terms of the glossary in HTML."""

import re
from html import escape

from ..words import glossary


def marked(text: str) -> str:
    """Return escaped text in which the first occurrence of each term is marked."""
    seen: set[str] = set()

    def mark(match: re.Match[str]) -> str:
        entry = glossary.entry(match[0])
        if entry in seen:
            return match[0]
        seen.add(entry)
        return f"<dfn class='term' tabindex='0' data-term='{entry}'>{match[0]}</dfn>"

    return glossary.PATTERN.sub(mark, escape(text))
