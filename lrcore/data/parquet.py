"""Rows of parquet files, of which a few bytes can expand to more text than fits into memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..system.errors import InputError
from ..system.memory import free_memory, raise_unless_free

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet as parquet

BATCH = 256  # rows that are decoded at a time
ROW = 300  # minimum bytes of a Python row of short fields
SPEAKER = {"role", "from"}  # fields of a message
COPIES = 2  # copies of a text until it is tokenized


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows by field; nested fields other than conversations are empty lists.

    Raises InputError for an unreadable file, and ResourceError if the rows do not fit into memory,
    before they are read.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        schema = parquet.read_schema(path)
        is_nested = {field.name: pyarrow.types.is_nested(field.type) for field in schema}
        chats = [field.name for field in schema if _has_messages(field.type)]
        columns = [name for name in schema.names if name in chats or not is_nested[name]]
        leaves = parquet.read_metadata(path).schema
        paths = [leaves.column(index).path for index in range(len(leaves))]
        in_chats = [path for path in paths if path.partition(".")[0] in chats]
        flat = [name for name in columns if name not in chats]
        file = parquet.ParquetFile(path, read_dictionary=flat + in_chats)
        _check_memory(path, file, columns)
        empty: dict[str, Any] = {name: [] for name in schema.names if name not in columns}
        batches = file.iter_batches(BATCH, columns=columns)
        return [row | empty for batch in batches for row in batch.to_pylist()]
    except pyarrow.ArrowException as error:
        cause = str(error).splitlines()[0]
        raise InputError(
            f"'{path}' is not a readable parquet file: {cause} Check that the copy is complete."
        ) from error


def _check_memory(path: Path, file: "parquet.ParquetFile", columns: list[str]) -> None:
    """Compare the free memory with the sizes in the metadata, then with the decoded texts."""
    metadata = file.metadata
    groups = range(metadata.num_row_groups)
    unpacked = sum(metadata.row_group(index).total_byte_size for index in groups)
    rows = ROW * metadata.num_rows
    subject, remedy = f"The rows of '{path.name}'", "Take fewer rows, or free memory."
    raise_unless_free(max(unpacked, rows), subject, remedy, free_memory())
    batches = file.iter_batches(BATCH, columns=columns)
    texts = sum(_decoded(column) for batch in batches for column in batch.columns)
    raise_unless_free(rows + COPIES * texts, subject, remedy, free_memory())


def _has_messages(kind: "pyarrow.DataType") -> bool:
    """Return whether a type is a list of messages, see conversations.py."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind)
    if not is_list or not types.is_struct(kind.value_type):
        return False
    return not SPEAKER.isdisjoint(field.name for field in kind.value_type)


def _decoded(column: "pyarrow.Array") -> int:
    """Return the bytes of a column of a batch without the dictionary encoding."""
    import pyarrow
    from pyarrow import compute, types

    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    if is_list or types.is_struct(column.type):
        parts = column.flatten()
        return ROW * len(parts) + _decoded(parts) if is_list else sum(map(_decoded, parts))
    is_encoded = isinstance(column, pyarrow.DictionaryArray)
    texts = column.dictionary if is_encoded else column
    if any(
        has_other_size(texts.type)
        for has_other_size in (
            types.is_primitive,
            types.is_decimal,
            types.is_null,
            types.is_nested,
        )
    ):
        return int(column.nbytes)
    lengths = compute.binary_length(texts)
    return int(compute.sum(lengths.take(column.indices) if is_encoded else lengths).as_py() or 0)
