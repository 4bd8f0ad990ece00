"""docs/coverage.html and docs/coverage.md: the coverage of every device as pages, the same text on every machine.

    python -m kvreg.cli.coverage_pages html | markdown

The HTML is one file without scripts, fonts or images; it follows the reader's light or dark scheme, its tables scroll
sideways within a narrow screen, and no cell speaks by its colour alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from kvreg.cli.coverage import everything
from kvreg.core.coverage import HEAD_SIZES, STATUSES, Cell, Row, counts, rows, summary
from kvreg.core.errors import BadFile, wrong
from kvreg.core.modes import Mode
from kvreg.core.shards import replace_file

COMMAND = "python ci/generate.py coverage coverage-html"

PLATFORMS = {"cuda": "NVIDIA CUDA", "rocm": "AMD ROCm", "xpu": "Intel XPU", "cpu": "The host's processor"}

MARKS = {"measured": "\u25cf", "compiled": "\u25d0", "interpreted": "\u25cb"}
"""A full, a half and an empty circle: the stronger the fuller."""

MEANINGS: Mapping[str, str] = {
    "measured": "the gate passed on that card, or on another card of the same arch",
    "compiled": "the numerics passed in Triton's interpreter, and the compiler's figures for the arch are sound",
    "interpreted": "the numerics passed in Triton's interpreter; select takes it with --allow interpreted only",
    "head_size": "no kernel takes the head size",
    "fp8_type": "the arch has no such fp8 type in Triton",
    "q_heads": "the query heads are no multiple of the KV heads",
    "dtype": "the arch has no unit for bf16; ask with --dtype fp16",
    "arch": "the kernels are for other archs",
    "capability": "the kernels need a newer arch",
    "layout": "no kernel takes the layout",
    "feature": "no kernel has the feature",
    "page": "no kernel takes the page size",
    "group": "too many query heads for a KV head",
    "accuracy": "only a looser accuracy class is there",
    "family": "KVREG_BACKEND insists on another family",
    "format": "write, decode and prefill store different formats",
    "no_variant": "no kernel for the mode on the platform",
    "expectation": "the kernel's correctness test is switched off there",
    "compile": "the compiler makes no code of it",
    "threads": "more threads than a block may have",
    "shared_memory": "more shared memory than a block may have",
    "matrix_instruction": "scalar multiply-adds where a matrix instruction is declared",
    "spills": "registers spill",
    "stale": "the kernel has changed since its last validation",
    "evidence": "nobody has validated it there yet",
    "feature_evidence": "a feature was not validated there",
    "config_evidence": "other launch parameters were validated there",
}
"""Status, or code of a refusal (every one of kvreg.core.constraints.ORDER), and what it says."""

_STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --paper: #fff; --line: #d0d7de;
  --measured: #0a5c36; --compiled: #0b4f9e; --interpreted: #7a4b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9aa4ae; --paper: #0d1117; --line: #30363d;
  --measured: #56d390; --compiled: #79b8ff; --interpreted: #e3b341; } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
a { color: inherit; }
.wide { overflow-x: auto; margin-bottom: 1rem; border: 1px solid var(--line); border-radius: .4rem; }
.wide:focus-visible, a:focus-visible { outline: 2px solid var(--compiled); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; font-weight: 600; padding: .5rem .6rem; }
th, td { padding: .3rem .6rem; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { white-space: nowrap; }
tbody th { position: sticky; left: 0; background: var(--paper); font-weight: 400; min-width: 9rem; max-width: 16rem; }
td { white-space: nowrap; color: var(--dim); border-left: 1px solid var(--line); }
td.measured { color: var(--measured); } td.compiled { color: var(--compiled); }
td.interpreted { color: var(--interpreted); }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.5rem; }
"""


def html(found: Sequence[Cell], modes: Sequence[Mode], sizes: Sequence[int]) -> str:
    """Return the page."""
    by_platform = _by_platform(found, modes)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>kvreg: coverage</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<main>",
        "<h1>What is measured, compiled and refused</h1>",
        f"<p>{escape(_intro(found, modes, sizes))}</p>",
        "<nav><p>"
        + " · ".join(f'<a href="#{name}">{escape(_title(name))}</a>' for name in (*by_platform, "labels"))
        + "</p></nav>",
    ]
    for platform, own in by_platform.items():
        parts.append(f'<section>\n<h2 id="{platform}">{escape(_title(platform))}</h2>')
        parts += [_table(platform, mode, own, sizes) for mode in modes]
        parts.append("</section>")
    labels = "\n".join(f"<dt>{_marked(name)}</dt>\n<dd>{escape(text)}</dd>" for name, text in _legend(found))
    parts.append(
        f'<section>\n<h2 id="labels">Labels</h2>\n<dl>\n{labels}\n</dl>\n</section>\n</main>\n</body>\n</html>'
    )
    return "\n".join(parts) + "\n"


def _table(platform: str, mode: Mode, own: Sequence[Row], sizes: Sequence[int]) -> str:
    """Return the table of one mode, in a region of its own that scrolls."""
    name = f"{platform}-{mode}"
    heads = "".join(f'<th scope="col">{size}</th>' for size in sizes)
    lines = [
        f'<div class="wide" role="region" aria-labelledby="{name}" tabindex="0">\n<table>',
        f'<caption id="{name}">{mode}, by head size</caption>',
        f'<thead><tr><th scope="col">devices</th><th scope="col">arch</th>{heads}</tr></thead>\n<tbody>',
    ]
    for devices, arch, labels in _alike(own, mode):
        shown = " ".join(devices)
        lines.append(f'<tr><th scope="row">{escape(shown)}</th><td>{escape(arch)}</td>{_cells(labels)}</tr>')
    return "\n".join([*lines, "</tbody>\n</table>\n</div>"])


def _alike(own: Sequence[Row], mode: Mode) -> Iterator[tuple[list[str], str, tuple[str, ...]]]:
    """Yield (devices, arch, labels) with rows joined that differ in other modes only."""
    joined: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in own:
        joined.setdefault((row.arch, row.labels[mode]), []).extend(row.devices)
    for (arch, labels), devices in joined.items():
        yield devices, arch, labels


def _cells(labels: Sequence[str]) -> str:
    """Return the cells of a row; neighbours that say the same are one wide cell."""
    made = []
    for label, run in groupby(labels):
        width = len(list(run))
        kind = f' class="{label}"' if label in STATUSES else ""
        span = f' colspan="{width}"' if width > 1 else ""
        made.append(f"<td{kind}{span}>{_marked(label)}</td>")
    return "".join(made)


def _marked(label: str) -> str:
    mark = MARKS.get(label)
    return f'<span aria-hidden="true">{mark}</span> {escape(label)}' if mark else escape(label)


def markdown(found: Sequence[Cell], modes: Sequence[Mode], sizes: Sequence[int]) -> str:
    """Return docs/coverage.md."""
    parts = [
        "# Coverage",
        f"Generated by `{COMMAND}`; do not edit. `kvreg coverage` says the same,\n"
        "and adds what this machine has validated. [coverage.html](coverage.html) has a cell for each head size.",
        _intro(found, modes, sizes),
    ]
    for platform, own in _by_platform(found, modes).items():
        parts.append(f"## {_title(platform)}")
        table = [("devices", "arch", *(f"`{mode}`" for mode in modes)), ("---",) * (2 + len(modes))]
        table += [
            (" ".join(row.devices), row.arch, *(summary(row.labels[mode], sizes) for mode in modes)) for row in own
        ]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in table))
    parts.append("## Labels")
    lines = [("label", "meaning"), ("---", "---"), *((f"`{name}`", text) for name, text in _legend(found))]
    parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts += ["## As JSON", _SCHEMA]
    return "\n\n".join(parts) + "\n"


_SCHEMA = """\
`kvreg coverage --json` is `{"schema": 1, "modes", "head_sizes", "counts", "cells"}`: `counts` has a number for each
of `measured`, `compiled`, `interpreted` and `refused`; `cells` has one object for each device, mode and head size, in
that order:

| key | value |
| --- | --- |
| `device`, `platform`, `arch` | the device's key; `arch:sm_90` is any card of the arch that has no entry of its own |
| `mode`, `head_size` | what was asked; everything else is what `select` assumes |
| `status` | `measured`, `compiled`, `interpreted` or `refused` |
| `evidence_of` | the device that decode's numbers were taken on; null where it is refused |
| `code`, `reason` | of a refusal: the leading reason's code, and what is required, what was found and what to do |"""


def _intro(found: Sequence[Cell], modes: Sequence[Mode], sizes: Sequence[int]) -> str:
    devices = len({cell.device for cell in found})
    counted = ", ".join(f"{count} {status}" for status, count in counts(found).items())
    return (
        f"{devices} devices, {len(modes)} modes, {len(sizes)} head sizes ({', '.join(map(str, sizes))}): {counted}. "
        "Each is the answer of select to 32 query heads and 8 KV heads, page 16, bf16, causal, with interpreted "
        "evidence allowed. Devices of an arch that are alike share a row."
    )


def _legend(found: Sequence[Cell]) -> list[tuple[str, str]]:
    """Return the labels that occur, with what they mean; a code that is nobody's here (a plug-in's) has no meaning."""
    labels = {cell.code or cell.status: cell.label for cell in found}
    return [(labels[word], text) for word, text in MEANINGS.items() if word in labels]


def _by_platform(found: Sequence[Cell], modes: Sequence[Mode]) -> dict[str, list[Row]]:
    parted: dict[str, list[Row]] = {}
    for row in rows(found, modes):
        parted.setdefault(row.platform, []).append(row)
    return parted


def _title(platform: str) -> str:
    return "Labels" if platform == "labels" else PLATFORMS.get(platform, platform)


def write(path: Path, text: str) -> None:
    """Write a page in one step. Raises BadFile where its folder cannot be written."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        problem = wrong(str(path), required="a file in a folder that can be written", found=error.strerror or "none",
                        remedy="name another")  # fmt: skip
        raise BadFile(problem) from None


def main() -> None:
    """Print one of the pages."""
    makers = {"html": html, "markdown": markdown}
    modes = tuple(Mode)
    print(makers[sys.argv[1]](everything(None, modes, HEAD_SIZES), modes, HEAD_SIZES), end="")


if __name__ == "__main__":
    main()
