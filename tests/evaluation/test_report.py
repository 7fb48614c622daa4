"""Figures and pages: their content, and that they load no external resources."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from lrcore.evaluation.report import (
    Axis,
    Point,
    answers,
    format_value,
    page,
    pareto,
    scatter,
    split_at_difference,
    table,
    tick_label,
)
from lrcore.system.files import write_text

POINTS = [
    Point("a", "x", 1, 5),
    Point("b", "x", 2, 3),
    Point("c", "y", 3, 4),
    Point("d", "y", 4, 1),
]


def test_the_pareto_front_has_the_points_that_no_point_dominates():
    assert [p.name for p in pareto(POINTS)] == ["a", "b", "d"]
    assert [
        p.name for p in pareto([Point("a", "", 1, 1), Point("b", "", 1, 1), Point("c", "", 1, 0.5)])
    ] == ["c"]
    for point in POINTS:
        dominated = any(
            (q.x <= point.x and q.y < point.y) or (q.x < point.x and q.y <= point.y) for q in POINTS
        )
        assert (point in pareto(POINTS)) is not dominated


@pytest.mark.parametrize("log", [False, True])
def test_a_figure_shows_all_finite_points_inside_its_frame(log):
    points = [*POINTS, Point("lost", "x", 1, math.nan)]
    html = page("A", scatter("B", points, "size", "perplexity", log))
    svg = ElementTree.fromstring(re.search("<svg.*</svg>", html, re.DOTALL)[0])
    marks = [mark for mark in svg.iter("circle") if mark.find("title") is not None]
    assert len(marks) == 4
    for mark in marks:
        assert 0 < float(mark.get("cx")) < 760
        assert 0 < float(mark.get("cy")) < 380
    assert marks[3].find("title").text == "d: size 4, perplexity 1"


def test_figures_with_one_point_or_none_are_valid():
    assert "<circle" in page("A", scatter("B", [Point("a", "x", 0, 0)], "x", "y"))
    empty = page("A", scatter("B", [Point("a", "x", 0, math.inf)], "x", "y", log_y=True))
    assert "No finite values" in empty
    assert "<svg" not in empty


def test_large_values_on_an_axis_have_no_exponents():
    points = [Point("a", "x", 3e6, 1), Point("b", "x", 1.2e7, 2)]
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", page("A", scatter("B", points, "size", "y")))
    assert {"4 M", "12 M"} <= set(labels)
    assert not any("e+" in label for label in labels)
    assert [tick_label(value) for value in (9999, 20000, 280000)] == ["9999", "20 k", "280 k"]


def test_a_page_is_complete_and_loads_no_external_resources(tmp_path):
    text = page(
        "A <b>",
        table("T & U", [{"name": "<script>", "n": 1.5}, {"name": "b", "m": None}]),
        scatter("F", [*POINTS, Point("<script>", "<script>", 1, 1)], "<script>", "<script>"),
    )
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script", text)
    assert "&lt;script&gt;" in text
    write_text(tmp_path / "deep" / "report.html", text)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(6144.0, "6,144"), (1234.5, "1234.5000"), (8.0, "8.0000"), ("\n\n", r"'\n\n'"), ("", "")],
)
def test_values_are_readable(value, text):
    assert format_value(value) == text


def test_answers_are_side_by_side_with_differences_marked():
    rows = [
        {"prompt": prompt, "model": model, "answer": answer, "error": error}
        for prompt, model, answer, error in (
            ("One <b>", "dense", "a red ball", ""),
            ("One <b>", "<i>", "a real <script>", ""),
            ("Two", "dense", "", "too long"),
            ("Two", "<i>", "b", ""),
        )
    ]
    html = page("A", *answers(rows))
    assert html.count("<section>") == 4
    assert "One &lt;b&gt;" in html
    assert "<p>a red ball</p>" in html
    assert "<h3>&lt;i&gt;</h3>\n<p>a<mark> real &lt;script&gt;</mark></p>" in html
    assert "<p>too long</p>" in html
    assert "<script" not in html


@pytest.mark.parametrize(
    ("text", "reference", "parts"),
    [
        ("a b", "a b", ("a b", "")),
        ("a b c", "a b", ("a b", " c")),
        ("a bc", "a b", ("a", " bc")),
        ("a", "a b", ("a", "")),
        ("x", "y", ("", "x")),
        ("", "y", ("", "")),
        ("x", "", ("", "x")),
    ],
)
def test_a_text_is_split_before_the_first_different_word(text, reference, parts):
    assert split_at_difference(text, reference) == parts


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "—"),
        (1.5, "1.5000"),
        (1e-5, "1.000e-05"),
        (math.nan, "not finite"),
        (12345, "12,345"),
        (True, "True"),
    ],
)
def test_values_are_formatted(value, words):
    assert format_value(value) == words


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [(259.1105, 259.1615), (1.519, 1.5191), (1.0e9, 1.0000004e9)])
def test_labels_of_a_narrow_axis_differ(values, log):
    labels = [label for _, label in Axis(values, 0, 100, log).labeled_ticks()]
    assert len({*labels}) == len(labels) >= 4, labels
