"""What the page says of runs: in their table, where a job ends, and beside each other."""

COMPARED, COMPARE_RUN, COMPARE_TICKED = "Compare", "Compare {}", "Compare ticked"
SEARCH_RUNS = "Search name, tags, base, method, policy, text"
COLUMNS_SHOWN = "Columns"
NO_SUCH_RUNS = "No run has all of these words."
CHOOSE_RUNS = (
    "Up to six; the dense model stands beside them. The newest are listed here, all under Runs & "
    "export."
)
TOO_MANY_CHOSEN = "{} runs are chosen already: take one out before you add another."


def rows(first: int, end: int, of: int) -> str:
    """Which rows of a table are on show, of how many; first counted from 0."""
    if not of:
        return "0 runs"
    return f"{of} run{'s' if of > 1 else ''}" if end - first == of else f"{first + 1}–{end} of {of}"


def shorter(words: str, most: int) -> str:
    """The words, or their beginning and end with … between, `most` characters in all: the end of
    a path says most.
    """
    if len(words) <= most:
        return words
    head = (most - 1) // 3
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"
