"""The one file that a run on a card leaves: a tar archive that is whole at every moment, however the run ends."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

from kvreg.core.errors import BadFile, wrong

NAME = "results.tar.gz"


def pack(folder: Path, archive: Path) -> None:
    """Put every file below `folder` into `archive`, in one step: a reader sees the old archive or the new one."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=6) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                member = tarfile.TarInfo(path.relative_to(folder).as_posix())
                content = path.read_bytes()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(packed.getvalue())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, archive)


def unpack(source: Path, folder: Path) -> list[str]:
    """Put the files of an earlier run into `folder` where they are missing; returns their names.

    `source` is such an archive, a folder that holds one, or a folder that one was unpacked into. Raises BadFile for
    anything else.
    """
    archive = source / NAME if source.is_dir() and (source / NAME).is_file() else source
    if archive.is_dir():
        found = {path.relative_to(archive).as_posix(): path.read_bytes() for path in _files(archive)}
    else:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                found = {m.name: _content(tar, m) for m in tar.getmembers() if m.isfile()}
        except (OSError, tarfile.TarError, EOFError) as error:
            raise BadFile(
                wrong(
                    f"--resume {source}",
                    required=f"{NAME} of an earlier run, or its folder",
                    found=str(error),
                    remedy="name the folder that an earlier run has left",
                )
            ) from error
    taken = []
    for name, content in sorted(found.items()):
        target = (folder / name).resolve()
        if not target.is_relative_to(folder.resolve()) or target.exists():
            continue  # a name that leads out of the folder is nobody's result
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        taken.append(name)
    return taken


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file is not None else b""
