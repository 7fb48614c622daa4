"""Untrusted archives and pickles."""

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch

TEXT = "A zip is a folder that somebody else has packed.\n" * 20


def a_zip() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.txt", TEXT)
    return made.getvalue()


def a_tar() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("0001.txt")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    return made.getvalue()


PACKED = ("pytorch_model.bin", "model.pt", "rows.npy", "rows.npz")


class MakesFolder:
    """Object whose pickle creates a folder when it is loaded, in place of arbitrary code."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def pickles(marker: Path) -> dict[str, bytes]:
    """Return files of all formats with pickles; loading any of them creates the marker."""
    bomb = MakesFolder(marker)
    made = {name: io.BytesIO() for name in PACKED}
    torch.save({"weight": bomb}, made["pytorch_model.bin"])
    torch.save(bomb, made["model.pt"], _use_new_zipfile_serialization=False)
    objects = np.empty(1, dtype=object)
    objects[0] = bomb
    np.save(made["rows.npy"], objects, allow_pickle=True)
    np.savez(made["rows.npz"], objects)
    files = {name: file.getvalue() for name, file in made.items()}
    return files | {"rows.joblib": pickle.dumps(bomb), "old.pkl": pickle.dumps(bomb, protocol=2)}
