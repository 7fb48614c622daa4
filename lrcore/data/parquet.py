"""Rows of a parquet file, a few bytes of which can stand for more text than memory holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrcore.errors import InputError
from lrcore.memory import free_memory, raise_unless_free

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet as parquet

BATCH = 256  # rows that are decoded at once
ROW = 300  # bytes of a Python row of short fields, the least that one takes
COPIES = 2  # of every text on the way to tokens


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows with their fields; a nested field, which is no text, as an empty list.

    Raises InputError where the file cannot be read, and Shortage where its rows take more memory
    than is free, which is counted before any of them is made.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        schema = parquet.read_schema(path)
        nested = [field.name for field in schema if pyarrow.types.is_nested(field.type)]
        flat = [name for name in schema.names if name not in nested]
        file = parquet.ParquetFile(path, read_dictionary=flat)
        _check_memory(path, file, flat)
        empty: dict[str, Any] = {name: [] for name in nested}
        batches = file.iter_batches(BATCH, columns=flat)
        return [row | empty for batch in batches for row in batch.to_pylist()]
    except pyarrow.ArrowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(
            f"'{path}' is not a readable parquet file: {cause} Check that it was copied completely."
        ) from error


def _check_memory(path: Path, file: "parquet.ParquetFile", columns: list[str]) -> None:
    """By what the file says of its rows and pages, and then by what all texts are, written out."""
    metadata = file.metadata
    groups = range(metadata.num_row_groups)
    unpacked = sum(metadata.row_group(index).total_byte_size for index in groups)
    rows = ROW * metadata.num_rows
    what, remedy = f"The rows of '{path.name}'", "Take fewer rows, or free memory."
    raise_unless_free(max(unpacked, rows), what, remedy, free_memory())
    batches = file.iter_batches(BATCH, columns=columns)
    texts = sum(_decoded(column) for batch in batches for column in batch.columns)
    raise_unless_free(rows + COPIES * texts, what, remedy, free_memory())


def _decoded(column: "pyarrow.Array") -> int:
    """Bytes of a batch's column with every repeated text written out."""
    import pyarrow
    from pyarrow import compute, types

    repeated = isinstance(column, pyarrow.DictionaryArray)
    texts = column.dictionary if repeated else column
    if any(fixed(texts.type) for fixed in (types.is_primitive, types.is_decimal, types.is_null)):
        return int(column.nbytes)
    lengths = compute.binary_length(texts)
    return int(compute.sum(lengths.take(column.indices) if repeated else lengths).as_py() or 0)
