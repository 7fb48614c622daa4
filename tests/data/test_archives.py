"""Archives in or as a data set, which are never unpacked."""

import gzip
import json

import pytest
from packed_files import TEXT, a_tar, a_zip

from lrcore import InputError
from lrcore.data import load_texts

ARCHIVES = {
    "train.zip": a_zip(),
    "train.txt": a_zip(),  # `datasets` detects archives by their first bytes, not by their names
    "train.jsonl": a_zip(),
    "deep/train.csv": a_zip(),
    "train.tar": a_tar(),
    "train.json": a_tar(),
    "train.tar.gz": gzip.compress(a_tar(), mtime=0),
    "train.7z": b"7z\xbc\xaf\x27\x1c" + bytes(64),
    "train.eval": a_zip(),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_folder_of_texts_with_an_archive_is_refused(name, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(ARCHIVES[name])
    (tmp_path / "test.txt").write_text(TEXT)
    with pytest.raises(InputError, match=f"has the archive '{file.name}', which is not unpacked"):
        load_texts(str(tmp_path))


@pytest.mark.parametrize("name", ["train.txt", "train.jsonl", "train.json", "train.parquet"])
def test_an_archive_instead_of_a_text_file_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(a_zip())
    with pytest.raises(InputError):
        load_texts(str(tmp_path / name))


def test_a_single_compressed_text_is_read_as_a_stream(tmp_path):
    rows = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(3))
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    assert load_texts(str(tmp_path)).documents == ("row 0", "row 1", "row 2")
