"""Model files with random bytes replaced, and headers with arbitrary values, which are read or
refused with a message.
"""

import shutil
import struct
from pathlib import Path

import pytest
from campaign import SEED, long, run_campaign, short
from hypothesis import strategies as st

import lrcore
from lrcore.models.gguf_header import read_header

STRING, ARRAY, UINT32, FLOAT = 8, 9, 4, 6
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", 5: "i", FLOAT: "f", 7: "B", 10: "Q", 11: "q"}
SIZES = st.integers(0, 9) | st.sampled_from((2**31, 2**32 - 1, 2**60, 2**64 - 1))
NAMES = st.sampled_from(("general.alignment", "general.architecture", "x", "", "y"))
PIECES = st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8))
# positions of replaced bytes, and their new values
DAMAGES = st.lists(PIECES, min_size=1, max_size=4)


def text(content: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if size is None else size) + content


@st.composite
def settings(draw: st.DrawFn) -> bytes:
    """Draw a metadata field of a GGUF file, valid or not."""
    kind = draw(st.sampled_from((*FORMS, STRING, ARRAY, 12, 13)))
    start = text(draw(NAMES).encode()) + struct.pack("<I", kind)
    if kind == STRING:
        return start + text(draw(st.binary(max_size=6)), draw(st.none() | SIZES))
    if kind == ARRAY:
        inner = draw(st.sampled_from((*FORMS, STRING, ARRAY, 99)))
        return start + struct.pack("<IQ", inner, draw(SIZES)) + draw(st.binary(max_size=24))
    if kind == FLOAT:
        return start + struct.pack("<f", draw(st.floats(width=32)))
    return start + draw(st.binary(min_size=8, max_size=8))[: struct.calcsize(FORMS.get(kind, "Q"))]


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """Draw the description of a tensor in a GGUF file."""
    sizes = draw(st.lists(SIZES, max_size=5))
    kind = draw(st.integers(0, 45))
    start = text(draw(NAMES).encode()) + struct.pack("<I", len(sizes))
    return start + struct.pack(f"<{len(sizes)}QIQ", *sizes, kind, draw(SIZES))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Draw a GGUF file of such parts."""
    settings_drawn, listed = (
        draw(st.lists(settings(), max_size=4)),
        draw(st.lists(tensors(), max_size=3)),
    )
    counts = [draw(st.just(len(parts)) | SIZES) for parts in (listed, settings_drawn)]
    version = draw(st.sampled_from((3, 3, 3, 2, 1, 2**31)))
    start = struct.pack("<4sIQQ", b"GGUF", version, *counts)
    return b"".join((start, *settings_drawn, *listed, draw(st.binary(max_size=64))))


def damaged(content: bytes, pieces: list, length: int) -> bytes:
    """Replace pieces within the first bytes of a file."""
    changed_bytes = bytearray(content)
    for share, piece in pieces:
        at = int(share * length)
        changed_bytes[at : at + len(piece)] = piece
    return bytes(changed_bytes)


def read_or_refused(read, *values) -> None:
    """Call a function and accept a refusal of one line; other errors are raised."""
    message = ""
    try:
        read(*values)
    except lrcore.InputError as error:
        message = str(error)
    assert "\n" not in message


@pytest.fixture
def check_headers(tmp_path):
    def check(content: bytes) -> None:
        (tmp_path / "x.gguf").write_bytes(content)
        read_or_refused(read_header, tmp_path / "x.gguf")

    return check


@pytest.fixture
def check_bytes(tiny_llama, tmp_path):
    """Return a check of files with replaced bytes: weights and config in a folder, and GGUF."""
    model = lrcore.load(str(tiny_llama))
    gguf = Path(lrcore.export_gguf(model, tmp_path / "model.gguf").path).read_bytes()
    weights = (tiny_llama / "model.safetensors").read_bytes()
    length = 8 + struct.unpack("<Q", weights[:8])[0]
    config = (tiny_llama / "config.json").read_bytes()
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)

    def check(pieces: list, file: str) -> None:
        if file == "gguf":
            start = gguf.index(b"blk.0")
            (tmp_path / "x.gguf").write_bytes(damaged(gguf, pieces, start))
            read_or_refused(read_header, tmp_path / "x.gguf")
            return
        changed = {
            "model.safetensors": damaged(weights, pieces, length),
            "config.json": damaged(config, pieces, len(config)),
        }
        for name, content in (("model.safetensors", weights), ("config.json", config)):
            (folder / name).write_bytes(changed[name] if name == file else content)
        read_or_refused(lrcore.load, str(folder))

    return check


FILES = st.sampled_from(("gguf", "gguf", "model.safetensors", "config.json"))


def test_gguf_headers_with_arbitrary_values_are_read_or_refused(check_headers):
    assert run_campaign(short(300), check_headers, headers()) == 300


def test_files_with_replaced_bytes_are_read_or_refused(check_bytes):
    assert run_campaign(short(25), check_bytes, DAMAGES, FILES) == 25


@pytest.mark.soak
def test_many_damaged_files_are_read_or_refused(check_headers, check_bytes, capsys):
    counts = {
        "headers": run_campaign(long(50_000), check_headers, headers()),
        "files": run_campaign(long(3_000), check_bytes, DAMAGES, FILES),
    }
    with capsys.disabled():
        print(f"\nseed {SEED}: {counts}")
