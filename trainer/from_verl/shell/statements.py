"""Read the statements of a script: lists, pipelines, compound commands, assignments and redirections."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentloop.trainer.from_verl.shell.syntax import (
    DECLARES,
    AndOr,
    Assignment,
    Case,
    Command,
    Count,
    Evaluate,
    For,
    Function,
    Group,
    If,
    Loop,
    Pipeline,
    Redirect,
    Redirected,
    Simple,
    Test,
    Text,
    Word,
)
from agentloop.trainer.from_verl.shell.words import WordReader

_SPACE = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_RESERVED = re.compile(r"(?:[a-z]+|[{}!]|\[\[)(?=[\s;&|()<>]|$)")
_REDIRECT = re.compile(r"(\d*)(<<-|<<<|<<|<>|<&|&>>|&>|>>|>\||>&|<(?!\()|>(?!\())")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[|\+?=)", re.ASCII)
_FUNCTION = re.compile(r"([^\s;&|()<>$'\"`=]+)[ \t]*\([ \t]*\)")
_CLOSERS = ("then", "elif", "else", "fi", "do", "done", "esac", "}")
_COMPARISONS = ("==", "=", "!=", "=~", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef")


class Reader(WordReader):
    """Statements of a script."""

    def __init__(self, text: str, outer: WordReader | None = None) -> None:
        super().__init__(text, outer)
        self._documents: list[tuple[str, bool, bool, list[Word]]] = []
        """Here-documents that begin after this line: delimiter, whether expanded, whether tabs are cut, its place."""

    def inner(self, text: str) -> Reader:
        return Reader(text, self)

    def next_line(self) -> tuple[AndOr, ...]:
        """Read the statements up to the end of a line, which bash runs before it reads on; none at the end."""
        self._skip()
        found: list[AndOr] = []
        while self.at < len(self.text) and (not found or self.next() not in ("\n", "")):
            found.append(self._and_or())
            self._separator()
        if self._documents:
            self._skip()
        return tuple(found)

    def statements(self, closer: str = "", words: tuple[str, ...] = ()) -> tuple[AndOr, ...]:
        """Read statements until the closer or one of the reserved words, which is left."""
        self.enter()
        found: list[AndOr] = []
        while True:
            self._skip()
            if self.at >= len(self.text) or (closer and self.next() == closer):
                break
            if self._reserved() in words or (";;" in words and self.next(2) in (";;", ";&")):
                break
            found.append(self._and_or())
            self._separator()
        self.leave()
        return tuple(found)

    def _separator(self) -> None:
        self._blanks()
        if self.next() in (";", "&") and self.next(2) not in (";;", ";&"):
            self.at += 1
            self._blanks()

    def _blanks(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _skip(self) -> None:
        """Pass blanks, comments and the ends of lines."""
        self._blanks()
        while self.next() == "\n":
            self.at += 1
            self._read_documents()
            self._blanks()

    def _reserved(self) -> str:
        found = _RESERVED.match(self.text, self.at)
        return found[0] if found else ""

    def _keyword(self, word: str) -> None:
        self._skip()
        if self._reserved() != word:
            raise self.unexpected(f"{word!r} is missing")
        self.at += len(word)

    def _and_or(self) -> AndOr:
        parts = [("", self._pipeline())]
        self._blanks()
        while (operator := self.next(2)) in ("&&", "||"):
            self.at += 2
            self._skip()
            parts.append((operator, self._pipeline()))
            self._blanks()
        return AndOr(tuple(parts))

    def _pipeline(self) -> Pipeline:
        negated = False
        while self._reserved() in ("!", "time"):
            negated ^= self.next() == "!"
            self.at += len(self._reserved())
            self._blanks()
        commands = [self._command()]
        self._blanks()
        while self.next() == "|" and self.next(2) != "||":
            self.at += 2 if self.next(2) == "|&" else 1
            self._skip()
            commands.append(self._command())
            self._blanks()
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        self.enter()
        command = self._compound()
        if command is None:
            command = self._simple()
        elif not isinstance(command, Function) and (redirects := self._redirects()):
            command = Redirected(command, redirects)
        self.leave()
        return command

    def _compound(self) -> Command | None:
        if self.next(2) == "((" and (found := self._evaluate()):
            return found
        if self.next() == "(":
            self.at += 1
            body = self.statements(")")
            self.expect(")")
            return Group(body, subshell=True)
        word = self._reserved()
        kinds: dict[str, Callable[[str], Command]] = {
            "if": self._if,
            "while": self._loop,
            "until": self._loop,
            "for": self._for,
            "case": self._case,
        }
        if word in kinds:
            self.at += len(word)
            return kinds[word](word)
        if word == "{":
            return self._braces()
        if word == "[[":
            self.at += 2
            test = self._or()
            self._skip()
            self.expect("]]")
            return test
        if word in ("select", "coproc"):
            raise self.unexpected(f"{word!r} is not read")
        if word == "function":
            self.at += len(word)
            self._blanks()
        name = _FUNCTION.match(self.text, self.at)
        if word == "function" and name is None:
            name = re.compile(r"([^\s;&|()<>]+)").match(self.text, self.at)
        if name is None:
            return None
        self.at = name.end()
        self._skip()
        return Function(name[1], self._command())

    def _braces(self) -> Group:
        self.at += 1
        body = self.statements("}")
        self.expect("}")
        return Group(body)

    def _evaluate(self) -> Evaluate | None:
        start = self.at
        self.at += 2
        expression = self.word("sum")
        if self.next(2) == "))":
            self.at += 2
            return Evaluate(expression)
        self.at = start
        return None

    def _if(self, _word: str) -> If:
        branches: list[tuple[tuple[AndOr, ...] | None, tuple[AndOr, ...]]] = []
        while True:
            condition = self.statements(words=("then",))
            self._keyword("then")
            branches.append((condition, self.statements(words=("elif", "else", "fi"))))
            word = self._reserved()
            self.at += len(word)
            if word != "elif":
                break
        if word == "else":
            branches.append((None, self.statements(words=("fi",))))
            self._keyword("fi")
        elif word != "fi":
            raise self.unexpected("'fi' is missing")
        return If(tuple(branches))

    def _loop(self, word: str) -> Loop:
        condition = self.statements(words=("do",))
        return Loop(condition, self._do(), until=word == "until")

    def _do(self) -> tuple[AndOr, ...]:
        self._blanks()
        if self.next() == ";":
            self.at += 1
        self._keyword("do")
        body = self.statements(words=("done",))
        self._keyword("done")
        return body

    def _for(self, _word: str) -> For | Count:
        self._blanks()
        if self.next(2) == "((":
            self.at += 2
            first = self.word("clause")
            self.expect(";")
            condition = self.word("clause")
            self.expect(";")
            step = self.word("clause")
            self.expect("))")
            return Count(first, condition, step, self._do())
        name = re.compile(r"[A-Za-z_]\w*", re.ASCII).match(self.text, self.at)
        if name is None:
            raise self.unexpected("'for' has no variable")
        self.at = name.end()
        self._skip()
        if self._reserved() != "in":
            return For(name[0], None, self._do())
        self.at += 2
        self._blanks()
        words: list[Word] = []
        while self.next() not in ("\n", ";", ""):
            words.append(self._argument())
            self._blanks()
        return For(name[0], tuple(words), self._do())

    def _case(self, _word: str) -> Case:
        self._blanks()
        word = self._argument()
        self._keyword("in")
        items = []
        self._skip()
        while self._reserved() != "esac":
            if self.next() == "(":
                self.at += 1
            patterns: list[Word] = []
            while not patterns or self.next() == "|":
                self.at += bool(patterns)
                self._blanks()
                patterns.append(self._argument())
                self._blanks()
            self.expect(")")
            body = self.statements(words=(";;", "esac"))
            end = next((each for each in (";;&", ";;", ";&") if self.text.startswith(each, self.at)), "")
            self.at += len(end)
            items.append((tuple(patterns), body, end))
            self._skip()
        self._keyword("esac")
        return Case(word, tuple(items))

    def _or(self) -> Test:
        return self._joined("||", self._and)

    def _and(self) -> Test:
        return self._joined("&&", self._not)

    def _joined(self, operator: str, part: Callable[[], Test]) -> Test:
        self.enter()
        nodes = [part()]
        self._skip()
        while self.next(2) == operator:
            self.at += 2
            nodes.append(part())
            self._skip()
        self.leave()
        return nodes[0] if len(nodes) == 1 else Test(operator, nodes=tuple(nodes))

    def _not(self) -> Test:
        self._skip()
        if self._reserved() == "!":
            self.at += 1
            self.enter()
            inner = Test("!", nodes=(self._not(),))
            self.leave()
            return inner
        if self.next() == "(":
            self.at += 1
            found = self._or()
            self._skip()
            self.expect(")")
            return found
        first = self._argument()
        self._blanks()
        if self.next() in ("<", ">"):
            operator = self.next()
            self.at += 1
            self._blanks()
            return Test(operator, (first, self._argument()))
        if self.next(2) in ("]]", "&&", "||") or self.next() in (")", "\n"):
            return Test("-n", (first,))
        second = self._argument()
        written = _literal(second)
        if written in _COMPARISONS:
            self._blanks()
            return Test(written, (first, self._argument()))
        return Test(_literal(first), (second,))

    def _redirects(self) -> tuple[Redirect, ...]:
        found = []
        while redirect := self._redirect():
            found.append(redirect)
        return tuple(found)

    def _redirect(self) -> Redirect | None:
        self._blanks()
        match = _REDIRECT.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        self._blanks()
        operator = match[2]
        descriptor = int(match[1]) if match[1] else 0 if operator.startswith("<") else 1
        if operator not in ("<<", "<<-"):
            return Redirect(descriptor, operator, self._argument())
        delimiter = self._argument()
        document: list[Word] = []
        expanded = not any(isinstance(part, Text) and part.quoted for part in delimiter)
        self._documents.append((_literal(delimiter), expanded, operator == "<<-", document))
        return Redirect(descriptor, operator, document=document)

    def _read_documents(self) -> None:
        documents, self._documents = self._documents, []
        for delimiter, expanded, cut, document in documents:
            lines: list[str] = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                line = line.lstrip("\t") if cut else line
                self.at = min(end + 1, len(self.text))
                if line == delimiter:
                    break
                lines.append(f"{line}\n")
            text = "".join(lines)
            document.append(self.inner(text).word("heredoc") if expanded else (Text(text, True),))

    def _simple(self) -> Command:
        place = self.at
        if self._reserved() in _CLOSERS:
            raise self.unexpected(f"{self._reserved()!r} is not expected here")
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        while True:
            if redirect := self._redirect():
                redirects.append(redirect)
                continue
            if self.next() in ("", "\n", ";", "&", "|", ")", "("):
                break
            declares = bool(words) and _literal(words[0]) in DECLARES
            found = self._assignment() if not words or declares else None
            if found is None:
                words.append(self._argument())
            else:
                words.append(found) if declares else assignments.append(found)
        if not (assignments or words or redirects):
            raise self.unexpected(f"{self.next(12)!r} is not read here")
        command = Simple(place, tuple(assignments), tuple(words))
        return Redirected(command, tuple(redirects)) if redirects else command

    def _argument(self) -> Word:
        if self.next(2) in ("<(", ">("):
            self.at += 2
            self.statements(")")
            self.expect(")")
            return (Text("/dev/fd/63", True), *self.word())
        word = self.word()
        if not word:
            raise self.unexpected(f"{self.next(12)!r} is not read here")
        return word

    def _assignment(self) -> Assignment | None:
        match = _ASSIGNED.match(self.text, self.at)
        if match is None:
            return None
        start = self.at
        self.at = match.end()
        index = None
        operator = match[2]
        if operator == "[":
            index = self.word("index")
            operator = "+=" if self.next(3) == "]+=" else "="
            if not self.text.startswith(f"]{operator}", self.at):
                self.at = start
                return None
            self.at += 1 + len(operator)
        if self.next() == "(" and index is None:
            return Assignment(match[1], None, operator == "+=", elements=self._elements())
        return Assignment(match[1], self.word(), operator == "+=", index)

    def _elements(self) -> tuple[tuple[Word | None, Word], ...]:
        self.expect("(")
        elements: list[tuple[Word | None, Word]] = []
        while True:
            self._skip()
            if self.next() == ")":
                break
            start = self.at
            index = None
            if self.next() == "[":
                self.at += 1
                index = self.word("index")
                if self.next(2) == "]=":
                    self.at += 2
                else:
                    index, self.at = None, start
            word = self.word()
            if not word and index is None:
                raise self.unexpected(f"{self.next(12)!r} is not read in an array")
            elements.append((index, word))
        self.at += 1
        return tuple(elements)


def _literal(word: Word | Assignment) -> str:
    """Return the text of a word that has no expansions, else nothing."""
    if isinstance(word, Assignment) or not all(isinstance(part, Text) for part in word):
        return ""
    return "".join(part.text for part in word if isinstance(part, Text))
