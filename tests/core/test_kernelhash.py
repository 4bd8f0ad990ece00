"""The kernel hash sees what a kernel is and not how it is written down."""

import shutil
import subprocess
import sys

import pytest

from kvreg.core import index, kernelhash
from kvreg.core.errors import BadFile
from kvreg.core.kernelhash import kernel_hash, source_hash
from kvreg.core.registry import backends

KERNEL = '''\
"""A module."""
import triton
import triton.language as tl
from {package} import constants, shared
from {package}.shared import rotate as turn
from kvreg.core.modes import ROTATION_SEED

TILE: tl.constexpr = tl.constexpr(64)
UNUSED = 1


@triton.jit
def kernel(x, WIDTH: tl.constexpr):
    """What it does."""
    if WIDTH > TILE:
        x = turn(x) * constants.SCALE
        x = shared.double(x)
    return x


@triton.jit
def stranger(x):
    return x


class Launch:
    """Launches."""

    limit = 3
    """Why three."""

    def __call__(self, x):
        from {package}.late import grid

        kernel[grid(x)](x, ROTATION_SEED, "text")
'''

SHARED = """\
import triton


@triton.jit
def rotate(x):
    return inner(x)


@triton.jit
def inner(x):
    return x + 1


@triton.jit
def double(x):
    return x * 2


@triton.jit
def unused(x):
    return x
"""


class Package:
    """A package of kernel source on sys.path; nothing imports it."""

    def __init__(self, folder, name):
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        for module, text in {
            "__init__": "",
            "kernel": KERNEL.format(package=name),
            "shared": SHARED,
            "constants": "SCALE = 2\nOTHER = 3\n",
            "late": "def grid(x):\n    return (x,)\n",
        }.items():
            (self.folder / f"{module}.py").write_text(text)

    def hash(self):
        return source_hash([f"{self.name}.kernel:kernel", f"{self.name}.kernel:Launch"])

    def edit(self, module, old, new):
        path = self.folder / f"{module}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return Package(tmp_path, "hashed")


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("kernel", '    """What it does."""\n', ""),
        ("kernel", '    """Why three."""\n', '    """Because."""\n'),
        ("kernel", '"""A module."""', '"""Another."""'),
        ("kernel", "return x\n", "return x  # done\n"),
        ("kernel", '"text"', "'text'"),
        ("kernel", "UNUSED = 1", "UNUSED = 2"),
        ("kernel", "def stranger(x):\n    return x", "def stranger(x):\n    return -x"),
        ("shared", "def unused(x):\n    return x", "def unused(x):\n    return -x"),
        ("constants", "OTHER = 3", "OTHER = 4"),
    ],
)
def test_what_a_kernel_does_not_depend_on_leaves_its_hash(package, module, old, new):
    before = package.hash()

    package.edit(module, old, new)

    assert package.hash() == before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("kernel", "x = shared.double(x)", "x = shared.double(x + 0)"),
        ("kernel", "        x = shared.double(x)", "    x = shared.double(x)"),
        ("kernel", "constexpr(64)", "constexpr(65)"),
        ("kernel", '"text"', '"tex"'),
        ("kernel", "limit = 3", "limit = 4"),
        ("kernel", "@triton.jit\ndef kernel", "@triton.jit(noinline=True)\ndef kernel"),
        ("shared", "return inner(x)", "return inner(-x)"),
        ("shared", "return x + 1", "return x + 2"),
        ("shared", "return x * 2", "return x * 3"),
        ("constants", "SCALE = 2", "SCALE = 4"),
        ("late", "return (x,)", "return (x + 1,)"),
    ],
    ids=[
        "body",
        "statement out of its block",
        "constant",
        "string",
        "class attribute",
        "decorator",
        "callee under another name",
        "callee of a callee",
        "callee through its module",
        "constant through its module",
        "callee imported inside the launcher",
    ],
)
def test_what_a_kernel_depends_on_changes_its_hash(package, module, old, new):
    before = package.hash()

    package.edit(module, old, new)

    assert package.hash() != before


def test_whitespace_and_indentation_do_not_count(package):
    before = package.hash()
    path = package.folder / "kernel.py"

    path.write_text(path.read_text().replace("    ", "  ").replace("x, WIDTH", "x ,\n  WIDTH"))

    assert package.hash() == before


def test_constants_that_kvreg_lends_count(package):
    before = package.hash()

    # The name in the launcher stays the same; what it stands for does not.
    package.edit("kernel", "import ROTATION_SEED", "import SCALE_BYTES as ROTATION_SEED")

    assert package.hash() != before


def test_an_f_string_in_covered_code_is_refused_with_its_line(package):
    package.edit("shared", "return x + 1", 'return f"{x}"')

    with pytest.raises(BadFile, match=r"hashed\.shared, line 11: required no f-string"):
        package.hash()


def test_an_f_string_elsewhere_is_nobodys_business(package):
    before = package.hash()

    package.edit("shared", "def unused(x):\n    return x", 'def unused(x):\n    return f"{x}"')

    assert package.hash() == before


def test_a_missing_root_is_named(package):
    with pytest.raises(BadFile, match=r"hashed\.kernel:gone: required its definition, found none"):
        source_hash(["hashed.kernel:gone"])


def test_broken_source_is_named(package):
    (package.folder / "shared.py").write_text("def (:\n")

    with pytest.raises(BadFile, match=r"hashed\.shared: required Python source"):
        package.hash()


def test_recursion_and_cycles_end(package):
    package.edit("shared", "return x + 1", "return rotate(x)")

    assert len(package.hash()) == 64


def test_definitions_inside_if_and_try_count(package):
    package.edit("constants", "SCALE = 2\n", "try:\n    SCALE = 2\nexcept ImportError:\n    SCALE = 5\n")
    before = package.hash()

    package.edit("constants", "SCALE = 5", "SCALE = 6")

    assert package.hash() != before


def test_nothing_is_imported(package):
    code = (
        "import sys; from kvreg.core.kernelhash import source_hash; "
        "source_hash(['hashed.kernel:kernel', 'hashed.kernel:Launch']); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('hashed', 'triton', 'torch')])"
    )
    path = [str(package.folder.parent), *sys.path]

    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_supported_python_gives_the_same_hash(package, version):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "pass"], capture_output=True, check=False).returncode:
        pytest.skip(f"Python {version} is not here")
    roots = [f"{package.name}.kernel:kernel", f"{package.name}.kernel:Launch"]
    # The hash needs kvreg's own core and the standard library, so any interpreter can run it.
    home = str(index.SHIPPED.parent.parent)
    code = (
        f"import sys; sys.path[:0] = [{home!r}, {str(package.folder.parent)!r}]; "
        f"from kvreg.core.kernelhash import source_hash; print(source_hash({roots!r}))"
    )

    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == package.hash()


def test_the_hash_of_a_fixed_text_never_changes(package):
    """Traces hold hashes for years: another value here makes every trace stale."""
    assert package.hash() == "e654a295d0df87cf046da18a7d1fca46f5851df26d0527a32143f97866f3696e"


@pytest.mark.parametrize("backend", backends(), ids=lambda backend: backend.name)
def test_every_variant_of_every_backend_has_a_hash_of_its_own_source(backend):
    for variant in backend.variants():
        digest = kernel_hash(variant)

        assert len(digest) == 64
        assert digest == kernel_hash(variant)


def test_variants_have_one_hash_exactly_where_they_share_their_kernels():
    """Modes may share a kernel that tells them apart by its arguments; a write never shares a read's."""
    for backend in backends():
        found = {(variant.kernels, kernel_hash(variant)) for variant in backend.variants()}

        assert len(found) == len({kernels for kernels, _ in found}) == len({digest for _, digest in found})
        writes, reads = ({v.kernels for v in backend.variants() if (v.op == "write") is w} for w in (True, False))
        assert writes.isdisjoint(reads)


def test_a_hash_reads_only_the_packages_of_the_variant_and_kvreg(package, monkeypatch):
    read = []
    monkeypatch.setattr(
        kernelhash, "source_file", lambda name, found=kernelhash.source_file: read.append(name) or found(name)
    )

    package.hash()

    assert {name.partition(".")[0] for name in read} == {"hashed", "kvreg"}
