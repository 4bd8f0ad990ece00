"""Adds to a recorded space what its kernels' machine code says: `python ci/read_recording.py FILE --python PYTHON`.

A card's trials know registers and shared memory only. Here the main kernel of each recorded config is compiled again
for the card's arch, with the same sources and the same release of Triton (PYTHON has it), and the counts of
kvreg_triton.cross.machine_code go into `resources` of its trials, for the model of costs (docs/tuning.md). Nothing
measured is changed. Ends with 1 where the sources or Triton are others than those that were recorded.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "tuning")]

from kvreg.core import resolve  # noqa: E402
from kvreg.core.kernelhash import kernel_hash  # noqa: E402
from kvreg.core.shards import replace_file  # noqa: E402
from kvreg_triton.cross.compilations import Compiler  # noqa: E402
from kvreg_triton.cross.launches import launches  # noqa: E402
from kvreg_triton.cross.specializations import target_of  # noqa: E402
from kvreg_tuning import recording  # noqa: E402
from kvreg_tuning.estimating import MAIN  # noqa: E402
from kvreg_tuning.spaces import Space  # noqa: E402
from kvreg_tuning.subjects import kernel_text, offered  # noqa: E402

COUNTS = ("instructions", "barriers", "shared_clocks")


def counts_of(space: Space, device_key: str, compiler: Compiler) -> dict[str, dict[str, int]]:
    """Compile each kernel of a space once; returns its counts by the kernel's text."""
    device = resolve.resolve(device_key).device
    _, variant = offered(device.platform)[space.subject.variant]
    if kernel_hash(variant) != space.kernel_hash:
        sys.exit(f"{space.subject.variant}: other sources than those that were recorded")
    configs = {kernel_text(config): config for config in space.candidates.configs}
    request, target = space.subject.request(space.buckets[0]), target_of(device)
    forms = [launches(variant, device, request, config, target) for config in configs.values()]
    mains = [next(each.specialization for each in form if each.form == MAIN[variant.op]) for form in forms]
    names, found = list(configs), {}
    for place, compiled in compiler.run(mains, [space.kernel_hash] * len(mains)):
        wanted = [f"{part}_{name}" for part in ("once", "tile") for name in COUNTS]
        found[names[place]] = {name: compiled.reading[name] for name in wanted if name in compiled.reading}
        print(f"{len(found)} of {len(names)}: {names[place]} {compiled.status}", file=sys.stderr)
    return found


def main() -> int:
    """Read, compile, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--python", default=sys.executable, help="interpreter with the recorded release of Triton")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    recorded = recording.read(asked.file)
    version = subprocess.run(
        [asked.python, "-c", "import triton; print(triton.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if version != recorded.versions["triton"]:
        sys.exit(f"{asked.python} has Triton {version}, recorded with {recorded.versions['triton']}")
    compiler = Compiler(python=asked.python, triton=version, jobs=asked.jobs)
    counts = [counts_of(space, recorded.device, compiler) for space in recorded.spaces]
    head, *lines = (json.loads(line) for line in gzip.decompress(asked.file.read_bytes()).splitlines())
    for line in lines:
        line["resources"] = {**line.get("resources", {}), **counts[line["space"]].get(kernel_text(line["config"]), {})}
    records: list[dict[str, Any]] = [head, *lines]
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    replace_file(asked.file, gzip.compress(text.encode(), mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
