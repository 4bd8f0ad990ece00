"""The kernel hash: what a trace was measured with, read from source text alone.

sha256 over the tokens of each kernel root of a variant, of everything in the same packages that they name, directly
or through others (jit callees, module constants, plain functions, classes), and of constants that they import from
kvreg itself. Comments, docstrings and layout do not count: names, operators, numbers and strings do, and so does the
block structure (a statement that moves out of an `if` is another kernel). Nothing is imported: not Triton, not torch,
not the module that holds the kernel. Equal on every supported Python, for which f-strings are refused (they tokenize
differently from release to release) and strings are compared by value.

A hash covers too much rather than too little: a local name equal to a module's name counts as that name.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from kvreg.core.errors import BadFile, wrong
from kvreg.core.sources import source_file
from kvreg.core.variants import Variant

_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_STRUCTURE = {tokenize.NEWLINE: "<line>", tokenize.INDENT: "<in>", tokenize.DEDENT: "<out>"}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.AugAssign
_Import = ast.Import | ast.ImportFrom


def kernel_hash(variant: Variant) -> str:
    """Return the hash of a variant's kernels, callees, constants and launcher, as 64 hexadecimal digits.

    Raises BadFile when a kernel root or its source is missing, or when covered code holds an f-string.
    """
    return source_hash((*variant.kernels, variant.launcher), optional=(variant.launcher,))


def source_hash(roots: Iterable[str], optional: Iterable[str] = ()) -> str:
    """Return the hash of `module:name` roots; a root in `optional` may be missing from its module's text.

    `Variant.kernels` names the launcher itself; `Variant.launcher` may reach it lazily, without a static definition.
    """
    covered: dict[tuple[str, str], str] = {}
    modules: dict[str, _Module] = {}
    wanted = [_root(text) for text in sorted(set(roots))]
    packages = {module.partition(".")[0] for module, _ in wanted}
    may_miss = {_root(text) for text in optional}
    required = {pair for pair in wanted if pair not in may_miss}
    while wanted:
        module_name, name = pair = wanted.pop()
        if pair in covered:
            continue
        package = module_name.partition(".")[0]
        inside = package in packages
        if not inside and package != "kvreg":
            continue
        module = modules.get(module_name) or modules.setdefault(module_name, _Module.read(module_name))
        found = [node for node in module.definitions.get(name, ()) if inside or _is_constant(node)]
        if found:
            covered[pair] = " ".join(filter(None, map(module.text_of, found)))
            wanted += [reference for node in found for reference in module.named_by(node)]
        elif name in module.imports:
            wanted.append(module.imports[name])
        elif pair in required:
            raise BadFile(
                wrong(
                    f"kernel hash of {module_name}:{name}", required="its definition", found="none", remedy="name it"
                )
            )
    digest = hashlib.sha256()
    for (module_name, name), tokens in sorted(covered.items()):
        digest.update(f"{module_name}:{name}\n{tokens}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _module(name: str, path: Path | None, text: str) -> _Module:
    """Return a module's parsed text; by the text itself, as a file may change while a process runs."""
    return _Module(name, path, text)


class _Module:
    """One source file: its top-level definitions, imports and tokens. What was worked out of a node is kept."""

    def __init__(self, name: str, path: Path | None, text: str) -> None:
        self.name = name
        self.path = path
        self.package = name if path is not None and path.name == "__init__.py" else name.rpartition(".")[0]
        self.definitions: dict[str, list[_Definition]] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.lines = text.splitlines(keepends=True)
        self._texts: dict[_Definition, str] = {}
        self._named: dict[_Definition, list[tuple[str, str]]] = {}
        for node in _top_level(ast.parse(text).body):
            if isinstance(node, _Import):
                self.imports.update(self._imported(node))
            else:
                for defined in _names(node):
                    self.definitions.setdefault(defined, []).append(node)

    @staticmethod
    def read(name: str) -> _Module:
        """Read the module's text; a module without source (builtin, compiled) is empty."""
        path = source_file(name)
        if path is None:
            return _module(name, None, "")
        try:
            return _module(name, path, path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise BadFile(
                wrong(f"kernel hash of {name}", required="Python source", found=str(error), remedy=f"mend {path}")
            ) from error

    def _imported(self, node: _Import) -> dict[str, tuple[str, str]]:
        """Return local name -> (module, name); the name is empty where the local name is a module itself."""
        if isinstance(node, ast.Import):
            return {
                (alias.asname or alias.name.partition(".")[0]): (
                    alias.name if alias.asname else alias.name.partition(".")[0],
                    "",
                )
                for alias in node.names
            }
        base = node.module or ""
        if node.level:
            parts = self.package.split(".")
            kept = parts[: len(parts) - node.level + 1]
            base = ".".join([*kept, base] if base else kept)
        return {alias.asname or alias.name: (base, alias.name) for alias in node.names}

    def text_of(self, node: _Definition) -> str:
        """Return the tokens of a definition in one line."""
        if node not in self._texts:
            self._texts[node] = " ".join(self.tokens(node))
        return self._texts[node]

    def named_by(self, node: _Definition) -> list[tuple[str, str]]:
        """Return the `references` of a definition."""
        if node not in self._named:
            self._named[node] = list(self.references(node))
        return self._named[node]

    def references(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the (module, name) pairs that code may mean: own names, imported ones, attributes of modules."""
        imports = dict(self.imports)
        for inner in ast.walk(node):
            if isinstance(inner, _Import):
                imports.update(self._imported(inner))
                yield from (pair for pair in self._imported(inner).values() if pair[1])
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                if inner.id in self.definitions:
                    yield self.name, inner.id
                elif inner.id in imports:
                    yield imports[inner.id]
            elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id in imports:
                module, name = imports[inner.value.id]
                yield (f"{module}.{name}" if name else module), inner.attr

    def tokens(self, node: _Definition) -> Iterator[str]:
        """Yield the tokens of a definition, decorators included, without comments, docstrings and layout."""
        self._refuse_fstrings(node)
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        text = "".join(self.lines[first - 1 : node.end_lineno])
        silenced = {(line - first + 1, column) for line, column in _docstrings(node)}
        after_docstring = False
        indent = node.col_offset
        # A definition inside `if` or `try` is indented; tokenize wants a first line that is not.
        source = f"if 1:\n{text}" if indent else text
        shift = 1 if indent else 0
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            place = (token.start[0] - shift, _byte_column(token.line, token.start[1]))
            if (shift and token.start[0] == 1) or token.type in _SILENT:
                continue
            if place in silenced and token.type == tokenize.STRING:
                after_docstring = True
            elif after_docstring and token.type in (tokenize.NEWLINE, tokenize.STRING):
                after_docstring = token.type == tokenize.STRING
            elif token.type == tokenize.STRING:
                yield ascii(ast.literal_eval(token.string))
            else:
                yield _STRUCTURE.get(token.type, token.string)

    def _refuse_fstrings(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.JoinedStr):
                raise BadFile(
                    wrong(
                        f"kernel hash of {self.name}, line {inner.lineno}",
                        required="no f-string in code that the hash covers",
                        found="one",
                        remedy="use a plain string, str.format or a constant",
                    )
                )


def _root(text: str) -> tuple[str, str]:
    module, _, name = text.partition(":")
    return module, name.partition(".")[0]


def _top_level(body: Iterable[ast.stmt]) -> Iterator[_Definition | _Import]:
    """Yield definitions and imports of a module, those inside `if`, `try` and `with` included."""
    for node in body:
        if isinstance(node, _Definition | _Import):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _top_level(node.body)
            if not isinstance(node, ast.With):
                yield from _top_level(node.orelse)
            if isinstance(node, ast.Try):
                yield from _top_level(node.finalbody)
                for handler in node.handlers:
                    yield from _top_level(handler.body)


def _names(node: _Definition) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def _is_constant(node: _Definition) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign)


def _docstrings(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield (line, byte column) of each docstring inside a definition, attribute docstrings of classes included."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for statement in inner.body:
                if (
                    isinstance(statement, ast.Expr)
                    and isinstance(statement.value, ast.Constant)
                    and isinstance(statement.value.value, str)
                ):
                    yield statement.lineno, statement.col_offset


def _byte_column(line: str, column: int) -> int:
    """Return the UTF-8 offset that `ast` uses for a character column of `tokenize`."""
    return len(line[:column].encode()) if not line.isascii() else column
