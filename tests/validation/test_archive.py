"""The archive is whole at every moment, and an earlier one can be gone on from."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from kvreg.core.errors import BadFile
from kvreg.validation.archive import NAME, pack, unpack


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "journal.jsonl").write_text("{}\n")
    (folder / "deep/er/trace.yaml").write_bytes(b"\x00\xff trace")
    (folder / ".hidden").write_text("no result")
    return folder


def test_packing_and_unpacking_gives_the_same_files(work: Path, tmp_path: Path) -> None:
    pack(work, tmp_path / "out" / NAME)

    taken = unpack(tmp_path / "out", tmp_path / "again")

    assert taken == ["deep/er/trace.yaml", "journal.jsonl"]
    assert (tmp_path / "again/deep/er/trace.yaml").read_bytes() == b"\x00\xff trace"


def test_equal_files_give_equal_bytes_and_no_temporary_file_is_left(work: Path, tmp_path: Path) -> None:
    pack(work, tmp_path / "a" / NAME)
    pack(work, tmp_path / "b" / NAME)

    assert (tmp_path / "a" / NAME).read_bytes() == (tmp_path / "b" / NAME).read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == [NAME]


def test_a_folder_that_was_unpacked_serves_too(work: Path, tmp_path: Path) -> None:
    assert "journal.jsonl" in unpack(work, tmp_path / "again")


def test_what_is_there_already_is_newer_and_stays(work: Path, tmp_path: Path) -> None:
    pack(work, tmp_path / NAME)
    (work / "journal.jsonl").write_text("newer\n")

    assert unpack(tmp_path / NAME, work) == []
    assert (work / "journal.jsonl").read_text() == "newer\n"


def test_a_name_that_leads_out_of_the_folder_is_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / NAME, "w:gz") as tar:
        for name in ("../outside.txt", str(tmp_path / "absolute.txt"), "inside.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))

    assert unpack(tmp_path / NAME, tmp_path / "work") == ["inside.txt"]
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "work"}


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"\x1f\x8b\x08\x00 cut"])
def test_what_is_no_archive_is_a_bad_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)

    with pytest.raises(BadFile, match="--resume"):
        unpack(tmp_path / NAME, tmp_path / "work")
