"""The derived index: rebuilt when a source differs, never trusted when damaged, never fatal."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from kvreg.core import builders, shards
from kvreg.core.errors import BadFile
from kvreg.core.index import SHIPPED, Index
from kvreg.core.shipping import ship

INT4 = "int4_per_token_head"


class Counted:
    """Counts how often the slow readers run."""

    def __init__(self, monkeypatch):
        self.calls = []
        for name in ("devices", "kernels", "evidence", "tuned"):
            self._watch(monkeypatch, name, getattr(builders, name))

    def _watch(self, monkeypatch, name, slow):
        def watched(*arguments):
            self.calls.append(name)
            return slow(*arguments)

        monkeypatch.setattr(builders, name, watched)

    def taken(self):
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


def age(*folders):
    """Give every file an older time: an index is kept only of files older than a file clock's tick."""
    for folder in folders:
        for path in folder.rglob("*"):
            os.utime(path, (time.time() - 60, time.time() - 60))


@pytest.fixture
def kept(workshop, counted):
    """A workshop with evidence whose index is written."""
    workshop.validate("alpha")
    age(workshop.folder, workshop.source.parent)
    workshop.ask("alpha", INT4, 96)
    counted.taken()
    return workshop


def shard_files(workshop):
    return sorted((workshop.home / "cache").rglob("*.json"))


def test_a_second_read_builds_nothing(kept, counted):
    assert kept.ask("alpha", INT4, 96).result.verdict == "selected"
    assert counted.taken() == []


def test_a_changed_device_file_is_read_again(kept, counted):
    path = kept.folder / "devices.yaml"
    path.write_text(path.read_text().replace("compute_units: 10", "compute_units: 12"))

    assert kept.resolve("alpha").device.compute_units == 12
    assert "devices" in counted.taken()


def test_a_source_of_equal_size_and_another_time_is_read_again(kept, counted):
    path = kept.source
    path.write_text(path.read_text().replace("SCALE = 3", "SCALE = 4"))

    assert kept.ask("alpha", INT4, 96).results[0].verdict == "refused"
    assert "kernels" in counted.taken()


def test_a_new_trace_is_seen(kept):
    kept.validate("alpha", 128)

    assert kept.ask("alpha", INT4, 128).results[0].verdict == "selected"


def test_a_removed_trace_is_missed(kept):
    next(kept.backend.evidence_dir.glob(f"alpha/{INT4}/*decode*.yaml")).unlink()

    assert kept.ask("alpha", INT4, 96).results[0].verdict == "refused"


def test_a_source_that_may_still_change_unseen_is_not_kept(workshop, counted):
    workshop.validate("alpha")
    soon = time.time_ns() + 60 * 10**9  # as if just written, however slow the machine is
    for path in workshop.backend.evidence_dir.rglob("d96-*"):
        os.utime(path, ns=(soon, soon))

    workshop.ask("alpha", INT4, 96)
    counted.taken()
    workshop.ask("alpha", INT4, 96)

    assert "evidence" in counted.taken()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-3] + b"0" + content[-2:],
        lambda content: b"\xff\xfe" + content,
        lambda content: b"[" * 100000,
        lambda content: b"null\nnull",
        lambda content: b'{"schema": 99}\n{}',
        lambda content: content.replace(b'"schema":%d' % shards.SCHEMA, b'"schema":%d' % (shards.SCHEMA + 1), 1),
        lambda content: content.partition(b"\n")[0],
        lambda content: content + b"\n{}",
    ],
    ids=["empty", "cut", "bit", "bytes", "deep", "null", "foreign", "newer", "headless", "longer"],
)
def test_a_damaged_shard_is_rebuilt(kept, counted, damage):
    for path in shard_files(kept):
        path.write_bytes(damage(path.read_bytes()))

    assert kept.ask("alpha", INT4, 96).result.verdict == "selected"
    assert {"devices", "kernels", "evidence"} <= set(counted.taken())
    kept.ask("alpha", INT4, 96)
    assert counted.taken() == []


def test_a_shard_of_another_kind_in_its_place_is_rebuilt(kept, counted):
    devices, *_ = [path for path in shard_files(kept) if path.name == "all.json" and "devices" in str(path)]
    kernels, *_ = [path for path in shard_files(kept) if path.name == "all.json" and "kernels" in str(path)]
    devices.write_bytes(kernels.read_bytes())

    assert kept.resolve("alpha").device.key == "alpha"
    assert counted.taken() == ["devices"]


def test_a_folder_in_a_shards_place_is_survived(kept):
    for path in shard_files(kept):
        path.unlink()
        path.mkdir()

    assert kept.ask("alpha", INT4, 96).result.verdict == "selected"


def test_a_home_that_cannot_be_written_works_with_one_warning(workshop, capsys):
    workshop.validate("alpha")
    age(workshop.folder, workshop.source.parent)
    shutil.rmtree(workshop.home, ignore_errors=True)
    workshop.home.mkdir()
    # A file where the cache's folder should be: it cannot be made, whoever runs the test.
    (workshop.home / "cache").write_text("")

    for _ in range(2):
        assert workshop.ask("alpha", INT4, 96).result.verdict == "selected"

    warnings = [line for line in capsys.readouterr().err.splitlines() if "KVREG_HOME" in line]
    assert len(warnings) == 1
    assert str(workshop.home) in warnings[0]


def test_no_temporary_file_stays(kept):
    assert [path for path in kept.home.rglob("*") if path.name.endswith(".tmp")] == []


def test_two_checkouts_share_a_home_without_reading_each_others_index(kept, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    text = (kept.folder / "devices.yaml").read_text()
    (other / "devices.yaml").write_text(text.replace("compute_units: 10", "compute_units: 99"))
    age(other)
    second = type(kept.backend)(other)

    for _ in range(2):
        assert Index([kept.backend], kept.home, None).devices()[0].compute_units == 10
        assert Index([second], kept.home, None).devices()[0].compute_units == 99


def test_readers_beside_a_writer_never_see_half_a_shard(tmp_path):
    """Two processes rebuild one shard in a loop while this one reads it."""
    path = tmp_path / "all.json"
    code = (
        "import sys; from pathlib import Path; from kvreg.core import shards\n"
        "for n in range(300): shards.write(Path(sys.argv[1]), 'k', 'all', ['x' * 20000, n], [])"
    )
    shards.write(path, "k", "all", ["x" * 20000, -1], [])
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)], env={**os.environ}) for _ in range(2)]

    seen = 0
    while any(writer.poll() is None for writer in writers):
        payload = shards.read(path, "k", "all", [])
        assert payload is not None
        assert len(payload[0]) == 20000
        seen += 1

    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen > 10
    assert [each.name for each in tmp_path.iterdir()] == ["all.json"]


def test_a_shard_is_two_lines_of_json_with_its_sources(kept):
    for path in shard_files(kept):
        header, payload = path.read_bytes().split(b"\n")

        assert {"schema", "kind", "part", "sources", "crc32"} == set(json.loads(header))
        json.loads(payload)


def test_select_reads_only_the_head_sizes_shard_of_a_large_tuned_file(workshop, counted):
    workshop.validate("alpha")
    entries = [
        {"head_size": 32 + 8 * (n % 60), "bucket": f"b{1 << n % 7}-c{256 << n // 7 % 11}", "config": {"tile": n}}
        for n in range(600)
    ]
    workshop.tune("alpha", *entries, {"config": {"tile": 77}})
    age(workshop.folder, workshop.source.parent)
    workshop.ask("alpha", INT4, 96)
    counted.taken()

    assert workshop.ask("alpha", INT4, 96).result.ops["decode"].config == {"tile": 77}
    assert counted.taken() == []
    sizes = [path.stat().st_size for path in shard_files(workshop) if path.name == f"{INT4}-d96-decode-g4.json"]
    whole = sum(path.stat().st_size for path in shard_files(workshop) if path.name.startswith(f"{INT4}-d"))
    assert max(sizes) < whole / 20


def test_an_index_that_no_disk_keeps_reads_a_tuned_file_once_until_it_changes(workshop, counted):
    workshop.validate("alpha")
    workshop.tune("alpha", {"config": {"tile": 77}})
    age(workshop.folder, workshop.source.parent)
    index = Index([workshop.backend], None, shipped=None)

    first = workshop.ask("alpha", None, 96, index=index)
    workshop.tune("alpha", {"config": {"tile": 78}, "bucket": "b32-c8192", "date": "2026-11-30T11:00:00Z"})
    age(workshop.folder)
    second = workshop.ask("alpha", None, 96, index=index)

    tiles = [
        each.ops["decode"].config["tile"] for answer in (first, second) for each in answer.results if each.mode == INT4
    ]
    assert (tiles, counted.taken().count("tuned")) == ([77, 78], 2)


@pytest.fixture
def shipped(workshop, tmp_path):
    """The index that a wheel of the workshop would carry."""
    workshop.validate("alpha")
    workshop.tune("alpha", {"config": {"tile": 77}})
    place = tmp_path / "shipped"
    ship([workshop.backend], place)
    return place


def test_a_shipped_index_answers_without_a_look_at_the_sources(workshop, shipped, counted, monkeypatch):
    index = Index([workshop.backend], workshop.home, shipped)
    stamped = []
    monkeypatch.setattr(shards, "stamp", lambda path: stamped.append(path) or [path, 0, 0])

    result = workshop.ask("alpha", INT4, 96, index=index).result

    assert result.ops["decode"].config == {"tile": 77}
    assert result.ops["decode"].file == str(workshop.backend.tuned_dir / "alpha.yaml")
    assert counted.taken() == ["devices"]  # the workshop's own look-up of the name, not the shipped index
    assert {os.path.basename(path) for path in stamped} == {"devices.yaml"}


def test_a_shipped_index_and_the_sources_give_one_answer(workshop, shipped):
    index = Index([workshop.backend], workshop.home, shipped)

    for device in ("alpha", "beta", "alpha-mini"):
        assert workshop.ask(device, None, 96, index=index) == workshop.ask(device, None, 96)


def test_the_overlay_stands_above_a_shipped_index(workshop, shipped):
    workshop.tune("alpha", {"config": {"tile": 99}}, overlay=True)

    result = workshop.ask("alpha", INT4, 96, index=Index([workshop.backend], workshop.home, shipped)).result

    assert result.ops["decode"].config == {"tile": 99}


def test_a_damaged_shipped_shard_is_read_from_its_sources(workshop, shipped):
    for path in shipped.rglob("*.json"):
        if path.name != "manifest.json":
            path.write_bytes(b"")

    result = workshop.ask("alpha", INT4, 96, index=Index([workshop.backend], workshop.home, shipped)).result

    assert result.ops["decode"].config == {"tile": 77}


def test_equal_sources_ship_equal_bytes(workshop, shipped, tmp_path):
    ship([workshop.backend], tmp_path / "again")

    for path in shipped.rglob("*.json"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(shipped)).read_bytes()
        assert str(tmp_path) not in path.read_text()


def test_a_wheel_is_not_built_of_an_edited_trace(workshop, shipped, tmp_path):
    path = next(workshop.backend.evidence_dir.glob(f"alpha/{INT4}/*decode*.yaml"))
    path.write_text(path.read_text().replace("seeds: 3", "seeds: 300"))

    with pytest.raises(BadFile, match="digest"):
        ship([workshop.backend], tmp_path / "again")


def test_a_wheel_is_not_built_of_a_broken_tuned_file(workshop, shipped, tmp_path):
    (workshop.backend.tuned_dir / "alpha.yaml").write_text("entries: [")

    with pytest.raises(BadFile, match="valid YAML"):
        ship([workshop.backend], tmp_path / "again")


def test_a_checkout_carries_no_shipped_index():
    """One left in the tree would hide every later change of the sources."""
    package = SHIPPED.parent
    if (package.parent / "pyproject.toml").exists():
        assert not SHIPPED.exists()
