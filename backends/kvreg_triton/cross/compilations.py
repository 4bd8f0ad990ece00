"""Compiling many specializations: a killable process group each, several at a time, every answer kept on disk.

    compiler = Compiler(cache=home / "cache" / "compiled", source=kernel_hash, jobs=2)
    for index, result in compiler.run(specializations): ...

An answer is kept under all that it depends on: the kernel's hash, the specialization with its options and target, the
release of Triton and the environment variables that change code. Timeouts and crashes are kept too (the compiler is
deterministic, and a compilation that takes for ever would take for ever again); `fresh` asks anew.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from kvreg.core.shards import replace_file
from kvreg_triton.cross.specializations import Specialization

CHILD = "kvreg_triton.cross.child"

PACKAGES = ("kvreg", "kvreg_triton", "kvreg_rocm", "kvreg_xpu", "kvreg_cuda")
"""What a child may import to find a kernel."""

TIMEOUT_S = 600.0
"""gfx11 took 32 s on Triton 3.6 and gfx1250 167 s on an idle core; a loaded machine takes several times as long."""

CODE_VARIABLES = (
    "AMDGCN_USE_BUFFER_OPS",
    "AMDGCN_USE_BUFFER_ATOMICS",
    "AMDGCN_ANALYZE_SMALL_TENSOR_RANGE",
    "TRITON_HIP_USE_BLOCK_PINGPONG",
    "TRITON_HIP_USE_IN_THREAD_TRANSPOSE",
    "TRITON_HIP_USE_ASYNC_COPY",
    "TRITON_DEFAULT_FP_FUSION",
    "PTXAS_OPTIONS",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
)
"""Environment variables that change code without being launch options."""

Status = Literal["ok", "error", "crash", "timeout"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one compilation."""

    status: Status
    seconds: float
    """Of the whole process."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """See kvreg_triton.cross.readings; empty unless `ok`."""
    error: str = ""
    """The compiler's own words, one line."""
    triton: str = ""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Compiled:
        """Read what `dataclasses.asdict` gave."""
        return cls(**record)


@dataclass(frozen=True, slots=True)
class Compiler:
    """Where compilations run and where their answers are kept."""

    source: str = ""
    """Hash of the kernels' source; answers of another are not taken."""
    cache: Path | None = None
    """Folder of the answers; None keeps none."""
    python: str = sys.executable
    """Interpreter of an environment with the Triton that is to compile; it need not have torch."""
    triton: str = ""
    """Release in that environment, part of what an answer is kept under."""
    child: str = CHILD
    """Module that reads a request and prints an answer as kvreg_triton.cross.child does."""
    jobs: int = 1
    timeout_s: float = TIMEOUT_S
    environment: Mapping[str, str] = field(default_factory=dict)
    """Laid over this process's own."""
    fresh: bool = False

    def run(
        self, specializations: Sequence[Specialization], sources: Sequence[str] = ()
    ) -> Iterator[tuple[int, Compiled]]:
        """Yield (index, result) as they are ready, kept ones first; equal ones are compiled once.

        `sources` names each one's hash of the kernels' source where they differ. Closing the iterator kills what runs.
        """
        alike: dict[tuple[str, str], list[int]] = {}
        for index, one in enumerate(specializations):
            alike.setdefault((one.digest, sources[index] if sources else self.source), []).append(index)
        open_ones: list[tuple[str, list[int]]] = []
        for (_, source), indices in alike.items():
            known = None if self.fresh else self.kept(specializations[indices[0]], source)
            if known is None:
                open_ones.append((source, indices))
            else:
                yield from ((index, known) for index in indices)
        running: set[int] = set()
        pool = ThreadPoolExecutor(max_workers=max(1, self.jobs))
        try:
            futures: dict[Future[Compiled], list[int]] = {
                pool.submit(self._one, specializations[indices[0]], source, running): indices
                for source, indices in open_ones
            }
            for future in as_completed(futures):
                result = future.result()
                yield from ((index, result) for index in futures[future])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for group in tuple(running):
                _kill(group)
            pool.shutdown(wait=True)

    def _one(self, one: Specialization, source: str, running: set[int]) -> Compiled:
        result = self.compile(one, running=running)
        path = self._place(one, source)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(asdict(result)).encode(), durable=False)
        return result

    def compile(self, one: Specialization, *, keep: Path | None = None, running: set[int] | None = None) -> Compiled:
        """Compile one, whatever is kept; `keep` takes the assembler texts. `running` holds the group meanwhile."""
        request = {"specialization": one.to_json(), "keep": str(keep) if keep else None}
        began = time.monotonic()
        process = subprocess.Popen(
            # -P: the folder that kvreg was called in must not shadow a module
            [self.python, "-P", "-m", self.child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment, "PYTHONPATH": self._search_path()},
            start_new_session=True,
        )
        if running is not None:
            running.add(process.pid)
        try:
            out, errors = process.communicate(json.dumps(request).encode(), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            process.communicate()
            words = f"still compiling after {self.timeout_s:g} s; its process group was killed"
            return Compiled("timeout", round(time.monotonic() - began, 2), error=words)
        finally:
            if running is not None:
                running.discard(process.pid)
        seconds = round(time.monotonic() - began, 2)
        try:
            answer = json.loads(out)
        except ValueError:
            return Compiled("crash", seconds, error=f"{_ending(process.returncode)}: {_last_words(errors)}")
        if answer["status"] != "ok":
            words = f"{answer['type']}: {answer['error']}"
            return Compiled("error", seconds, error=_one_line(f"{words}{_pass_error(errors)}"))
        return Compiled("ok", seconds, reading=answer["reading"], triton=answer["triton"])

    def _search_path(self) -> str:
        """Return where the child finds kvreg: as this process does, or by links where another Triton must be found."""
        if self.python == sys.executable:
            return os.pathsep.join(entry for entry in sys.path if entry)
        return str(_linked_packages())

    def _place(self, one: Specialization, source: str) -> Path | None:
        if self.cache is None:
            return None
        variables = {name: os.environ[name] for name in CODE_VARIABLES if name in os.environ}
        depends = [source, self.triton, self.child, variables, dict(self.environment), self.timeout_s, one.digest]
        key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
        return self.cache / key[:2] / f"{key[2:34]}.json"

    def kept(self, one: Specialization, source: str | None = None) -> Compiled | None:
        """Return the answer that is on disk, None where there is none."""
        path = self._place(one, self.source if source is None else source)
        try:
            return Compiled.from_json(json.loads(path.read_bytes())) if path is not None else None
        except (OSError, ValueError, TypeError):
            return None  # missing, cut off or of another shape: compiled again


@lru_cache(maxsize=1)
def _linked_packages() -> Path:
    """Return a folder with nothing but links to kvreg's packages: beside an installed kvreg lies another Triton."""
    folder = Path(tempfile.mkdtemp(prefix="kvreg-packages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            (folder / name).symlink_to(Path(found.origin).parent, target_is_directory=True)
    return folder


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code} without an answer"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _last_words(errors: bytes) -> str:
    """Return LLVM's reason where it stands among a stack trace, else the last line."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "LLVM ERROR" in line or "Assertion" in line]
    return _one_line((telling or lines or ["it said nothing"])[-1])


def _pass_error(errors: bytes) -> str:
    """Return what a compiler pass printed, its layouts cut: Triton itself only says that its pass manager failed."""
    found = re.search(rb"^\S+?:\d+:\d+: error: (.*)$", errors, re.MULTILINE)
    said = re.sub(r"(#\w+\.\w+<)\{[^}]*\}(>)", r"\1...\2", found[1].decode(errors="replace")) if found else ""
    return f"; {said}" if said else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]
