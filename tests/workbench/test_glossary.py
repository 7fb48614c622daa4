"""Terms of the glossary in the texts of the page."""

import pytest

from workbench.views import markup
from workbench.views.term_markup import marked
from workbench.words import glossary


@pytest.mark.parametrize("term", glossary.TERMS)
def test_every_term_is_marked_where_the_page_writes_it(term):
    sentence = f"<b>{'the ' * (term == 'energy')}{term.capitalize()} & more</b>"
    html = marked(sentence)
    assert f"data-term='{term}'>" in html
    assert html.startswith("&lt;b&gt;")
    assert "&amp; more" in html


def test_only_the_first_occurrence_of_a_whole_word_is_marked():
    html = marked("Layer 0 · qk; layer 1 · qk. Book, kernel, energy and waterfill.")
    assert html.count("<dfn") == 1
    assert "data-term='QK'>qk</dfn>;" in html


def test_messages_about_input_have_no_marked_terms():
    assert "<dfn" in markup.note("The KV cache is smaller.")
    assert "<dfn" not in markup.note("'KV cache' is empty.", "error")
