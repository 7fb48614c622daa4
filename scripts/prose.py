"""Wrap the text of Markdown files at 100 columns.

python scripts/prose.py [--check] FILE...: --check changes no file and lists files that are not
wrapped. Tables, code blocks, headings, comments and front matter are not changed.
"""

import re
import sys
import textwrap
from pathlib import Path

WIDTH = 100
ITEM = re.compile(r"(\s*)([*-]|\d+\.) ")
UNWRAPPED = re.compile(r"\s*(\||#|<!--|!\[|$)")
BULLET = re.compile(r" (?=(?:\d+\.|[-*+#|]) )")  # at the start of a line, it would begin an item
CODE = re.compile(r"`[^`]+`")
MAX_CODE = 90  # columns of a code span that is not broken


def wrap(text: str) -> str:
    """Return the text with paragraphs and list items wrapped at 100 columns."""
    lines, paragraph, fenced = [], [], False
    body = text.splitlines()
    if body and body[0] == "---":  # front matter
        end = body.index("---", 1) + 1
        lines, body = body[:end], body[end:]
    for line in body:
        fence = line.lstrip().startswith("```")
        if fence or fenced or UNWRAPPED.match(line):
            lines += [*fill(paragraph), line]
            paragraph, fenced = [], fenced != fence
        elif ITEM.match(line):
            lines += fill(paragraph)
            paragraph = [line]
        else:
            paragraph.append(line)
    return "\n".join(lines + fill(paragraph)) + ("\n" if text.endswith("\n") else "")


def unbroken(span: re.Match[str]) -> str:
    """Protect the spaces of a code span from line breaks, unless the span is long."""
    return span[0].replace(" ", "\0") if len(span[0]) <= MAX_CODE else span[0]


def fill(paragraph: list[str]) -> list[str]:
    """Return a paragraph or list item as lines, without breaks in short code spans."""
    if not paragraph:
        return []
    item = ITEM.match(paragraph[0])
    mark = item[0].lstrip() if item else ""
    indent = " " * (item.end() if item else len(paragraph[0]) - len(paragraph[0].lstrip()))
    words = " ".join(line.strip() for line in paragraph)[len(mark) :]
    words = CODE.sub(unbroken, words)
    words = mark + BULLET.sub("\0", words)
    filled = textwrap.wrap(
        words,
        WIDTH,
        initial_indent=item[1] if item else indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in filled]


def main(arguments: list[str]) -> int:
    """Wrap the files, or with --check return the number of files that are not wrapped."""
    check, unwrapped = "--check" in arguments, 0
    for path in (Path(name) for name in arguments if name != "--check"):
        text = path.read_text(encoding="utf-8")
        if wrap(text) == text:
            continue
        unwrapped += 1
        if check:
            print(f"{path} is not wrapped at {WIDTH} columns: python scripts/prose.py {path}")
        else:
            path.write_text(wrap(text), encoding="utf-8")
    return unwrapped if check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
