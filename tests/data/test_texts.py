"""Texts by name: built-in data sets and local files, and messages for invalid names."""

import gzip
import json
import os

import pyarrow
import pyarrow.parquet
import pytest

import lrcore
from lrcore.data import (
    BUILTIN,
    Texts,
    check_named,
    load_texts,
    parquet,
    stories,
    with_text_field,
)
from lrcore.data import text_files as files
from lrcore.data.extensions import PLAIN, TABLES
from lrcore.system.errors import InputError, ResourceError


def write(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content, encoding="utf-8")
    return str(path)


def refused(data, **options):
    with pytest.raises(InputError) as caught:
        load_texts(data, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_built_in_name_reads_the_split_of_its_role():
    assert set(BUILTIN) == {"stories", "python-docs"}
    calibration, test = load_texts("stories"), load_texts("stories", role="test")
    assert calibration.documents == tuple(stories.documents("calibration"))
    assert (calibration.source, test.source, load_texts("stories/test").source) == (
        "stories/calibration",
        "stories/test",
        "stories/test",
    )
    assert load_texts("stories/test").fingerprint == test.fingerprint != calibration.fingerprint
    assert load_texts("python-docs/calibration", role="test").source == "python-docs/calibration"


def test_a_text_file_is_a_single_document(tmp_path):
    texts = load_texts(write(tmp_path / "a.txt", "\ufeffOne.\n\nTwo é.\n"))
    assert texts.documents == ("One.\n\nTwo é.\n",)
    assert texts.source == str(tmp_path / "a.txt")


ROWS = {
    "text": ([{"text": "One", "id": "x"}, {"text": "", "id": "y"}], ("One", "")),
    "alpaca": (
        [
            {"instruction": "Add", "input": "1 2", "output": "3"},
            {"instruction": "Say", "input": "", "output": "Hi"},
        ],
        ("Add\n1 2\n3", "Say\nHi"),
    ),
    "one string column": ([{"id": 1, "story": "One"}, {"id": 2, "story": "Two"}], ("One", "Two")),
}


@pytest.mark.parametrize(("rows", "documents"), ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_rows_become_documents(tmp_path, kind, rows, documents):
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        write(path, "\n".join(json.dumps(row) for row in rows) + "\n\n")
    elif kind == "json":
        write(path, json.dumps(rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert load_texts(str(path)).documents == documents


def test_columns_of_a_parquet_file_without_text_are_ignored(tmp_path):
    category = pyarrow.array(["a", None, "a"]).dictionary_encode()
    number = pyarrow.array([7, 8, 7]).dictionary_encode()
    columns = {
        "n": [1, 2, None],
        "kind": number,
        "on": [True, None, False],
        "when": pyarrow.array([0, 1, 2], pyarrow.timestamp("s")),
        "price": pyarrow.array([1, 2, 3], pyarrow.decimal128(9, 2)),
        "nothing": pyarrow.nulls(3),
        "parts": [["x"], [], None],
        "pair": [{"a": "x"}] * 3,
    }
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns | {"story": ["One", "Two", "Three"]}), path)
    assert load_texts(str(path)).documents == ("One", "Two", "Three")
    pyarrow.parquet.write_table(pyarrow.table(columns | {"kind": category}), path)
    texts = load_texts(str(path))
    assert (len(texts.documents), texts.skipped) == (2, 1)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert "parts (list)" in refused(str(path))


def test_a_parquet_file_with_more_text_than_memory_is_refused_before_reading(tmp_path, monkeypatch):
    """Small files that expand: a repeated text of 4 GB in 12 kB, and a compressed column."""
    monkeypatch.setattr(parquet, "free_memory", lambda: 10**9)
    path, numbers = tmp_path / "rows.parquet", pyarrow.array([0] * 2_000, pyarrow.int32())
    repeated = pyarrow.DictionaryArray.from_arrays(numbers, ["a" * 10**6])
    pyarrow.parquet.write_table(pyarrow.table({"text": repeated}), path)
    assert path.stat().st_size < 100_000
    assert "'rows.parquet' take 4.00 GB of memory; 1.00 GB are free" in short_of_memory(path)
    monkeypatch.setattr(parquet, "free_memory", lambda: 10**5)
    table = pyarrow.table({"text": ["a" * 10**6]})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 10_000
    assert "take 1.0 MB of memory" in short_of_memory(path)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 10_000}), path)
    assert "take 3.0 MB of memory" in short_of_memory(path)  # the rows alone take 3 MB


def test_a_file_larger_than_memory_is_refused_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_memory", lambda: 1_500)
    write(tmp_path / "a.txt", "a" * 1_000)
    assert "The texts of 'a.txt' take 0.0 MB" in short_of_memory(tmp_path / "a.txt")


def short_of_memory(path):
    with pytest.raises(ResourceError) as caught:
        load_texts(str(path))
    return str(caught.value)


def test_json_lines_may_be_strings_with_unusual_line_separators(tmp_path):
    assert load_texts(write(tmp_path / "a.jsonl", '"One\u2028two"\r\n"Three"\n')).documents == (
        "One\u2028two",
        "Three",
    )


def test_an_alpaca_row_may_lack_its_input(tmp_path):
    rows = [{"instruction": "Add", "input": None, "output": "3"}]
    assert load_texts(write(tmp_path / "a.json", json.dumps(rows))).documents == ("Add\n3",)


def test_unknown_names_are_reported_with_a_suggestion():
    for name in ("storys", "story", "Stories", "pythondocs", "storie/test"):
        message = refused(name)
        assert f"Unknown data set '{name.partition('/')[0]}'. Did you mean '" in message
        assert ".jsonl" in message
    assert "Unknown split of stories 'valid'" in refused("stories/valid")
    assert "Did you mean 'test'" in refused("stories/tests")
    assert "Unknown role 'train'" in refused("stories", role="train")
    for empty in ("", "  ", None, 3):
        assert "No data set given" in refused(empty)


def test_a_missing_file_is_reported_as_a_file(tmp_path):
    write(tmp_path / "corpus.txt", "x")
    assert f"Did you mean '{tmp_path / 'corpus.txt'}'?" in refused(str(tmp_path / "corpsu.txt"))
    assert "does not exist either" in refused(str(tmp_path / "nowhere" / "a.jsonl"))
    assert "No file './nothing'" in refused("./nothing").replace(
        "No file 'nothing'", "No file './nothing'"
    )
    assert "Relative paths start at" in refused("nothing.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"ok \xff\xfe", ["not UTF-8", "byte 3 is 0xff", "Save it as UTF-8"]),
        ("a.csv", "a,b", ["has no rows"]),
        ("a.csv", "a,b\nx,y\n", ["Fields: a (str), b (str)", "as in data.jsonl#content"]),
        ("a.csv", 'text\n"open\n', ["is not a valid table", "unexpected end of data"]),
        ("a.csv", "text,text\na,b\n", ["'text' occurs twice"]),
        ("a.csv", "id,text\n1,Yes\n2,Well, no\n", ["row 2 has 3 cells", "header has 2", "Quote"]),
        ("a.jsonl.gz", b"no gzip", ["is not a complete gzip file"]),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "a"}' * 9, mtime=0)[:-9],
            ["not a complete gzip file"],
        ),
        ("a.jsonl.gz", gzip.compress(b"\xff\xfe", mtime=0), ["not UTF-8"]),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), ["not a readable parquet file"]),
        ("a.txt", "", ["is empty (0 bytes)"]),
        ("a.txt", " \n ", ["has no text", "1 documents are blank"]),
        ("a.jsonl", '{"text": "a"}\n{"text": ', ["line 2 of", "not valid JSON"]),
        ("a.json", '{"text": "a"}', ["a JSON dict, not a list of rows"]),
        ("a.json", "[]", ["has no rows"]),
        ("a.json", "[1, 2]", ["a row is of type int"]),
        (
            "a.jsonl",
            '{"a": "x", "b": "y", "n": 3}',
            ["Fields: a (str), b (str), n (int)", "or rename it to 'text'"],
        ),
        ("a.jsonl", '{"text": "a"}\n{"name": 2}', ["row 2: field 'text' is NoneType"]),
        ("a.jsonl", '{"text": null}\n{"text": null}', ["has no text: all 2 rows are null"]),
        ("a.jsonl", '{"text": "a"}\n"b"', ["row 2: expected an object", "got str"]),
        ("a.parquet", b"PAR1 not really", ["not a readable parquet file"]),
    ],
)
def test_a_file_that_cannot_be_used_is_reported_with_the_reason(tmp_path, name, content, words):
    message = refused(write(tmp_path / name, content))
    for word in [name, *words]:
        assert word in message


ROWS = [{"content": "One\ntwo", "n": 1, "other": "x"}, {"content": "Three", "n": 2, "other": "y"}]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)
CSV = 'content,n,other\n"One\ntwo",1,x\nThree,2,y\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.ndjson", LINES),
        ("a.json", json.dumps(ROWS)),
        ("a.csv", CSV),
        ("a.csv", CSV.replace(",", ";")),
        ("a.csv", CSV.replace(",", "|")),
        ("a.tsv", CSV.replace(",", "\t")),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("A.NDJSON.GZ", gzip.compress(LINES.encode(), mtime=0)),
        ("a.csv.gz", gzip.compress(CSV.encode("utf-8-sig"), mtime=0)),
        ("a#b.jsonl", LINES),
    ],
)
def test_a_field_of_a_table_is_read_by_its_name(tmp_path, name, content):
    path = write(tmp_path / name, content)
    for split in ("", ":all", ":test"):
        texts = load_texts(f"{path}#content{split}")
        assert texts.documents == ("One\ntwo", "Three")
        assert texts.source == f"{path}#content"
    with pytest.raises(InputError, match=r"Unknown field .* Did you mean 'content'"):
        load_texts(f"{path}#contend")
    check_named(f"{path}#content")
    with pytest.raises(InputError, match="No file"):
        check_named(f"{tmp_path}/none.jsonl#content")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("a.jsonl", "a.jsonl#content"),
        ("a.jsonl:test", "a.jsonl#content:test"),
        ("owner/name:config:test", "owner/name:config:test#content"),
    ],
)
def test_a_text_field_is_part_of_the_name(data, name):
    assert with_text_field(data, "content") == name


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        ("stories", "content", "has no fields"),
        ("stories/test", "content", "has no fields"),
        ("stories+python-docs", "content", "has no fields"),
        ("a.jsonl#text", "content", "already names a field"),
        (None, "content", "needs a data set"),
        ("a.jsonl", "", "not a valid text field"),
        ("a.jsonl", "a/b", "not a valid text field"),
        ("a.jsonl", 3, "not a valid text field"),
    ],
)
def test_an_invalid_text_field_raises(data, field, reason):
    with pytest.raises(InputError, match=reason):
        with_text_field(data, field)


def test_a_compressed_file_that_does_not_fit_into_memory_is_not_unpacked(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt.gz", gzip.compress(bytes(50 * files.CHUNK), mtime=0))
    unpacked = []
    monkeypatch.setattr(files, "free_memory", lambda: unpacked.append(1) or 2**28)
    with pytest.raises(ResourceError, match=r"The texts of 'a\.txt\.gz'"):
        load_texts(path)
    assert len(unpacked) < 12  # one check before reading, and one per chunk


def test_skipped_rows_are_in_the_protocol(tmp_path, tiny_llama):
    rows = '{"text": "One day a girl saw a cat in the park."}\n{"text": null}\n' * 20
    name = write(tmp_path / "a.jsonl", rows)
    for protocol in ("windows", "strided"):
        settings = {"samples": 2, "protocol": protocol}
        result = lrcore.evaluate(lrcore.load(str(tiny_llama)), name, **settings, seq_len=24)
        assert result.protocol["skipped_rows"] == 20


def test_every_extension_has_a_reader():
    assert files.READERS.keys() == {*PLAIN, *TABLES}


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.md.gz"])
def test_a_text_is_a_single_document_without_fields(tmp_path, name):
    content = gzip.compress(b"# One\n\nTwo", mtime=0) if name.endswith(".gz") else "# One\n\nTwo"
    path = write(tmp_path / name, content)
    assert load_texts(path).documents == ("# One\n\nTwo",)
    with pytest.raises(InputError, match="has no fields; got #content"):
        load_texts(f"{path}#content")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", 'null\n{"text": null}\n{"text": "One"}\n{"text": NaN}\n{"text": "Two"}\n'),
        ("a.csv", "text,n\n,1\n,2\nOne,3\n,4\nTwo,5\n"),
        (
            "a.jsonl",
            '{"s": null, "n": 1}\n{"s": "One", "n": 2}\n{"s": null, "n": 3}\n'
            '{"s": "Two", "n": 4}\n{"s": null, "n": 5}\n',
        ),
    ],
)
def test_rows_without_a_text_are_skipped_and_counted(tmp_path, name, content):
    texts = load_texts(write(tmp_path / name, content))
    assert texts.documents == ("One", "Two")
    assert texts.skipped == 3
    assert texts.remarks == {"skipped_rows": 3}
    assert texts.fingerprint == Texts(("One", "Two"), "").fingerprint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_file_without_read_permission_is_reported(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x")
    path.chmod(0)
    assert "Permission denied" in refused(str(path))


def test_a_folder_with_the_name_of_a_file_is_reported(tmp_path):
    (tmp_path / "a.txt").mkdir()
    assert "Cannot read" in refused(str(tmp_path / "a.txt"))


def test_only_hub_data_sets_have_revisions(tmp_path):
    assert "only hub data sets have revisions" in refused("stories", revision="main")
    assert "only hub data sets have revisions" in refused(
        write(tmp_path / "a.txt", "x"), revision="main"
    )


def test_a_folder_with_too_many_files_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("lrcore.data.hub._MAX_FILES", 3)
    for number in range(4):
        write(tmp_path / f"{number}.txt", "word")
    assert "has more than 3 files" in refused(str(tmp_path))


def test_a_mixture_interleaves_equal_shares_of_its_sets():
    mixed, parts = load_texts("stories+python-docs"), map(load_texts, ("stories", "python-docs"))
    assert mixed.source == "stories/calibration + python-docs/calibration"
    shares = []
    for part in parts:
        indices = [
            i
            for i, document in enumerate(mixed.documents)
            if any(document in d for d in part.documents)
        ]
        shares.append(sum(len(mixed.documents[i]) for i in indices))
        assert indices[0] < 3
        assert indices[-1] > 0.9 * len(mixed.documents)
    assert shares[0] == shares[1] == sum(map(len, mixed.documents)) / 2
    assert load_texts("stories+python-docs", "test").fingerprint != mixed.fingerprint


@pytest.mark.parametrize("name", ["stories/test+python-docs", "stories+./text", "a:b:c+stories"])
def test_a_mixture_with_splits_or_files_is_refused(name):
    with pytest.raises(InputError, match="without a split"):
        load_texts(name)


def test_a_mixture_has_shares_by_weight():
    mixed = load_texts("3*stories + 0.5*python-docs")
    assert mixed.source == "3*stories/calibration + 0.5*python-docs/calibration"
    docs = load_texts("python-docs").documents
    docs_length = sum(
        len(d) for d in mixed.documents if any(d in source_document for source_document in docs)
    )
    total = sum(map(len, mixed.documents))
    assert docs_length / total == pytest.approx(0.5 / 3.5, abs=1e-4)
    assert total == pytest.approx(7 * docs_length, rel=1e-4)


@pytest.mark.parametrize("name", ["0*stories+python-docs", "1.2.3*stories+python-docs"])
def test_a_weight_that_is_not_a_positive_number_is_refused(name):
    with pytest.raises(InputError, match="weight"):
        load_texts(name)
