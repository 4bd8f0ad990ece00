"""Coverage: every cell is what select says, devices that are alike share a row, and the pages say it for everyone."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from pathlib import Path

import pytest

import kvreg
from kvreg.cli import coverage_pages
from kvreg.cli.coverage import everything
from kvreg.core.constraints import ORDER
from kvreg.core.coverage import HEAD_SIZES, REFUSED, STATUSES, Cell, cells, counts, rows, summary
from kvreg.core.decisions import leading
from kvreg.core.environment import Environment
from kvreg.core.modes import Mode
from kvreg.core.snapshot import Snapshot

MODES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)
SIZES = (64, 96, 128, 160)
GOLDEN = Path(__file__).parent.parent / "cli" / "golden"


def of(workshop) -> list[Cell]:
    index = Snapshot([workshop.backend], workshop.home, shipped=None)
    return list(cells(index.devices(), MODES, SIZES, Environment(workshop.home), index))


@pytest.fixture
def found(workshop) -> list[Cell]:
    """Of arch toy_1, 96 was measured, 64 compiled and 128 interpreted; toy_2 has no bf16."""
    workshop.validate("alpha", 96)
    workshop.validate("beta", 64, numerics="interpreter", build="cross", speed="none", timings=[])
    workshop.validate("beta", 128, numerics="interpreter", build="none", speed="none", timings=[])
    return of(workshop)


def test_every_cell_of_a_sample_is_what_select_says() -> None:
    everywhere = everything(None, tuple(Mode), HEAD_SIZES)

    for cell in random.Random(4).sample(everywhere, 60):
        (result,) = kvreg.select(cell.device, cell.mode, cell.head_size, allow=("interpreted",)).results
        said = result.tier or REFUSED
        assert cell.status == said, cell
        assert cell.code == (getattr(leading(result.decisions), "code", None) if said == REFUSED else None)
    assert len(everywhere) == len({(cell.device, cell.mode, cell.head_size) for cell in everywhere})


def test_cells_are_measured_compiled_interpreted_or_refused(found: list[Cell]) -> None:
    known = {(cell.device, cell.head_size): cell for cell in found if cell.mode is Mode.INT4_PER_TOKEN_HEAD}

    assert (known["alpha", 96].status, known["alpha", 96].evidence_of) == ("measured", "alpha")
    assert (known["beta", 96].status, known["beta", 96].evidence_of) == ("measured", "alpha")
    assert (known["alpha", 64].label, known["alpha", 64].evidence_of) == ("compiled", "beta")
    assert (known["beta", 128].label, known["beta", 128].code) == ("interpreted", None)
    assert (known["alpha", 160].label, known["alpha", 160].evidence_of) == ("refused: evidence", None)
    assert "kvreg validate --device alpha" in (known["alpha", 160].reason or "")
    assert known["gamma", 96].label == "refused: dtype"
    assert sum(counts(found).values()) == len(found)
    assert tuple(counts(found)) == STATUSES


def test_a_snapshot_answers_as_the_index_does_and_sees_no_later_change(workshop) -> None:
    workshop.validate("alpha", 96)
    index = Snapshot([workshop.backend], workshop.home, shipped=None)
    for size in (64, 96):
        mine = workshop.ask("alpha", "int4_per_token_head", size, index=index)
        assert mine.results == workshop.ask("alpha", "int4_per_token_head", size).results

    workshop.validate("alpha", 64)

    assert workshop.ask("alpha", "int4_per_token_head", 64).result.tier == "measured"
    assert workshop.ask("alpha", "int4_per_token_head", 64, index=index).results[0].verdict == "refused"


def test_devices_of_an_arch_that_are_alike_share_a_row_and_no_others(found: list[Cell]) -> None:
    joined = {row.devices: row for row in rows(found, MODES)}

    assert len(joined) < len({cell.device for cell in found})
    assert sorted(device for row in joined.values() for device in row.devices) == sorted(
        {cell.device for cell in found}
    )
    for devices, row in joined.items():
        for device in devices:
            own = [cell.label for cell in found if cell.device == device and cell.mode is Mode.NONE]
            assert tuple(own) == row.labels[Mode.NONE]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("mmmm", "m"),
        ("mmsm", "s 128, else m"),
        ("esee", "s 96, else e"),
        ("ceim", "e 96, i 128, m 160, else c"),
    ],
)
def test_a_summary_names_the_head_sizes_of_all_but_the_commonest(labels: str, said: str) -> None:
    assert summary(labels, SIZES) == said


def test_every_status_and_every_reason_code_has_a_meaning() -> None:
    assert set(coverage_pages.MEANINGS) == {*STATUSES, *ORDER} - {REFUSED}


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_the_pages_are_as_agreed(found: list[Cell], name: str) -> None:
    page = getattr(coverage_pages, name)(found, MODES, SIZES)

    assert page == (GOLDEN / f"coverage.{name}").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """What a reader of the page meets: tags with attributes, rows with their cells' widths and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.widths: list[int] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.widths.append(0)
        if tag in ("td", "th"):
            self.widths[-1] += int(dict(attrs).get("colspan") or 1)
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and "table" in self.open and self.texts:
            self.texts[-1] += data


def test_the_page_needs_no_script_no_other_file_and_no_colour_to_be_read(found: list[Cell]) -> None:
    reader = Reader()
    reader.feed(coverage_pages.html(found, MODES, SIZES))
    names = [tag for tag, _ in reader.tags]

    assert reader.open == []
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert not [attrs for _, attrs in reader.tags if attrs.get("src") or (attrs.get("href") or "#")[0] != "#"]
    assert dict(reader.tags)["html"] == {"lang": "en"}
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a in reader.tags]
    assert names.count("caption") == names.count("table") == len(MODES)
    assert all(attrs.get("scope") for tag, attrs in reader.tags if tag == "th")
    assert set(reader.widths) == {2 + len(SIZES)}
    targets = {attrs["id"] for _, attrs in reader.tags if "id" in attrs}
    assert {(attrs["href"] or "")[1:] for tag, attrs in reader.tags if tag == "a"} <= targets
    # Every cell says its label in words; the circle beside it is for eyes only.
    said = {text.strip() for text in reader.texts}
    assert {f"{mark} {name}" for name, mark in coverage_pages.MARKS.items()} <= said
    assert {"refused: evidence", "refused: dtype"} <= said


def test_a_variant_whose_correctness_test_is_off_is_refused_with_that_code(workshop) -> None:
    workshop.validate("alpha", 96)
    workshop.except_test(when={"device": "alpha"}, invalidates=["toy-int4-decode@1"])
    index = Snapshot([workshop.backend], workshop.home, None, workshop.exceptions)

    found = cells(index.devices(), (Mode.INT4_PER_TOKEN_HEAD,), (96,), Environment(workshop.home), index)

    shown = {cell.device: cell.label for cell in found}
    assert shown["alpha"] == "refused: expectation"
    assert shown["beta"] == "measured"
