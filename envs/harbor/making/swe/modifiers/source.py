"""`Source`: a Python file as bytes with its syntax tree, and `Edit`, a change of some of the bytes."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\r|\n")
_COMMENT = re.compile(rb"#[^\r\n]*")
_NOT_RUN = ("annotation", "returns", "type_comment", "type_params")
"""Fields of nodes that hold types: changing them makes no bug."""
_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(slots=True, frozen=True, order=True)
class Edit:
    """Bytes from `start` to `stop` become `new`."""

    start: int
    stop: int
    new: bytes

    def applied(self, data: bytes) -> bytes:
        """Return the changed file."""
        return data[: self.start] + self.new + data[self.stop :]


class Source:
    """A file, and where its nodes are."""

    def __init__(self, data: bytes, tree: ast.Module) -> None:
        self.data = data
        self.tree = tree
        self.nodes = list(_nodes(tree))
        """Nodes whose positions are exact, and which are executed, in the order of the file."""
        self._ids = set(map(id, self.nodes))
        self._lines = [0, *(match.end() for match in _LINE_END.finditer(data))]

    @classmethod
    def parse(cls, data: bytes) -> Source | None:
        """Return a file, or None if this interpreter cannot parse it as Python in UTF-8."""
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            if encoding != "utf-8":  # positions count the bytes of UTF-8
                return None
            return cls(data, _parsed(data))
        except _NOT_PYTHON:
            return None

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[int, int]:
        """Return where a node begins and ends; parentheses around it are not part of it."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._lines[node.lineno - 1] + node.col_offset
        return begin, self._lines[node.end_lineno - 1] + node.end_col_offset

    def has(self, node: ast.AST) -> bool:
        """Return whether a node is one of `nodes`."""
        return id(node) in self._ids

    def text(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> bytes:
        """Return the text of a node."""
        start, stop = self.span(node)
        return self.data[start:stop]

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, bytes]:
        """Return where the text between two operands begins, and that text with comments blanked out."""
        start, stop = self.span(left)[1], self.span(right)[0]
        return start, _COMMENT.sub(lambda found: b" " * len(found[0]), self.data[start:stop])

    def blocks(self) -> Iterator[list[ast.stmt]]:
        """Yield the statements of each block: of the file, of functions, classes, branches and loops."""
        for node in (self.tree, *self.nodes):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block

    def whole_lines(self, node: ast.stmt | ast.expr, *, after: bytes = b"") -> tuple[int, int] | None:
        """Return where the lines of a node begin and end.

        None if they hold more than the node, `after` before it, and a comment.
        """
        start, stop = self.span(node)
        line = self._lines[node.lineno - 1]
        rest = _LINE_END.search(self.data, stop)
        end = len(self.data) if rest is None else rest.end()
        if self.data[line:start].strip() != after or _COMMENT.sub(b"", self.data[stop:end]).strip():
            return None
        return line, end

    def changed(self, edit: Edit) -> bytes | None:
        """Return the file with an edit; None if the result is invalid or means the same."""
        data = edit.applied(self.data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(data, "<bug>", "exec", dont_inherit=True)  # finds what `ast.parse` allows
            tree = _parsed(data)
        except _NOT_PYTHON:
            return None
        return None if ast.dump(tree) == ast.dump(self.tree) else data


def _parsed(data: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings of the package
        return ast.parse(data)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes below a tree without types, the inside of f-strings, and branches for type checkers."""
    waiting = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield node
        if isinstance(node, ast.JoinedStr):
            continue
        below: list[ast.AST] = []
        for name, value in ast.iter_fields(node):
            if name not in _NOT_RUN:
                below += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)]
        waiting += reversed(below)  # type: ignore[arg-type]
