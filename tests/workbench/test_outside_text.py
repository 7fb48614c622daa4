"""HTML in text of users, files and models, displayed as text."""

from lrcore import InputError
from workbench.views import markup
from workbench.widgets.events import failure_message

PICTURE = '<img src="http://other.example/x.png">'


def test_messages_are_escaped():
    for error in (InputError(f"Unknown component '{PICTURE}'."), ValueError(PICTURE)):
        assert "<" not in failure_message(error).message
        assert "&lt;img" in failure_message(error).message


def test_markdown_contains_no_html_and_no_image():
    escaped = markup.as_markdown(f"{PICTURE} and ![x](http://other.example/y.png)")
    assert "<" not in escaped
    assert "![" not in escaped


def test_markdown_contains_no_link_from_outside_text():
    named = "[x](javascript:y) [x][y] http://other.example www.other.example"
    escaped = markup.as_markdown(named)
    for part in ("](", "][", "://", "www."):
        assert part not in escaped
    assert escaped.replace("\\", "") == named
