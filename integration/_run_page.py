"""Run the Python blocks of a page of documentation, as its reader would: from top to bottom.

    python integration/_run_page.py docs/tutorial.md

The blocks of a page share their names, and their lines have the numbers of the page's lines. What
would clutter the page stands in comments of HTML, which readers do not see:

    <!-- setup                      code that runs in this place
    x = np.zeros(3)
    -->
    <!-- printed -->                the next block is what the one before it printed
    <!-- raises BatchError -->      the next block raises this; its message is then "printed"
    <!-- setup raises BatchError    the same of code that is not shown
    ...
    -->
    <!-- not run: why -->           the next block is not run
    <!-- only PyTensor: why -->     the next block is for readers who have PyTensor; or Theano

A line that ends with ``#-> text`` prints that text. In both, ``...`` stands for anything.

Where PyTensor is installed in place of Theano, the page is read as README.md says: `import theano`
is `import pytensor as theano`, `as_op` is `wrap_py`, and all else is the same.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
import sys
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

ENGINE = "Theano" if sys.version_info < (3, 12) else "PyTensor"
MARK = re.compile(r"^<!-- (setup|printed|raises|not run|only)(.*?)(-->)?$")
FENCE = re.compile(r"^( *)(`{3,}|:{3,})(\{?[\w-]*\}?)(.*)$")
PROMISE = re.compile(r"#-> (.*)$")
# How a program for Theano becomes one for PyTensor, and what it then prints.
TRANSLATED = (
    # As the line itself says, in a comment.
    (re.compile(r"^import theano\b.*#.* (import pytensor.*)$", re.MULTILINE), r"\1"),
    (
        re.compile(r"^from theano\.compile\.ops import as_op\b.*$", re.MULTILINE),
        "from pytensor import wrap_py as as_op",  # its own as_op is deprecated
    ),
    (re.compile(r"^( *)import theano$", re.MULTILINE), r"\1import pytensor as theano"),
    (re.compile(r"^( *)import theano\.", re.MULTILINE), r"\1import pytensor."),
    (re.compile(r"^( *)from theano\b", re.MULTILINE), r"\1from pytensor"),
)
PRINTED = (
    (re.compile(r"\bTheano\b"), "PyTensor"),
    (re.compile(r"\btheano\b(?=[/.])"), "pytensor"),
    (re.compile(r"Sum\{acc_dtype=float64\}"), "Sum{axes=None}"),
    (re.compile(r"Elemwise\{sub\}"), "Sub"),
    (re.compile(r"Elemwise\{eq,no_inplace\}"), "Eq"),
)
# Digits that differ by machine, in what `fork()`, `distribute()` and waiting ranks print.
MASKS = (
    (r"(\d+) (?:of|processes on) \d+ detected CPU cores", r"\1 CPU cores"),
    (r"complete \(\d+ s\)", "complete"),
    (r"(has\s+been\s[^:]*?\sfor|given\s+up\s+after)\s+\d+\s+s\b", r"\1 some s"),
    (r"(rank \d+ waited) [\d.]+ s\b", r"\1 some s"),
)


class Block(NamedTuple):
    """A fenced block, or a comment with code, of a page.

    Attributes:
        kind: the fence's language, or "setup".
        line: of its first line of text, counted from 1.
        mark, detail: the comment before it: "printed", "raises" or "not run" and what it says.
        only: the engine that it is for; "" for either.
    """

    kind: str
    text: str
    line: int
    mark: str = ""
    detail: str = ""
    only: str = ""

    @property
    def runs(self) -> bool:
        is_code = self.kind in ("setup", "python") and self.mark != "not run"
        return is_code and self.only in ("", ENGINE)


def blocks(page: str) -> Iterator[Block]:
    lines = page.splitlines()
    mark, detail, only, number = "", "", "", 0
    while number < len(lines):
        comment, fence = MARK.match(lines[number]), FENCE.match(lines[number])
        number += 1
        if comment and comment.group(1) == "setup":
            end = next(n for n in range(number, len(lines)) if lines[n].strip() == "-->")
            said = re.fullmatch(r"(?: raises (\w+))?(?: only (\w+))?", comment.group(2))
            error, engine = said.groups("") if said else ("", "")
            outcome = ("raises" if error else "", error, engine)
            yield Block("setup", "\n".join(lines[number:end]), number + 1, *outcome)
            number = end + 1
        elif comment and comment.group(1) == "only":
            only = comment.group(2).partition(":")[0].strip()
        elif comment:
            mark, detail = comment.group(1), comment.group(2).strip(" :")
        elif fence and fence.group(2).startswith("`"):
            indent = len(fence.group(1))
            end = next(n for n in range(number, len(lines)) if lines[n].strip() == fence[2])
            text = "\n".join(line[indent:] for line in lines[number:end])
            yield Block(fence.group(3), text, number + 1, mark, detail, only)
            mark, detail, only, number = "", "", "", end + 1
        elif lines[number - 1].strip() and (mark or only):
            raise ValueError(f"line {number}: no block follows the mark {mark or only!r}")


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        # By value, as what is defined in a user's program, it travels to other processes.
        self.names: dict[str, Any] = {"__name__": "__main__", "print": self._print}
        self._printed = io.StringIO()
        self._promises: dict[int, str] = {}
        self._kept: set[int] = set()
        self._wrong: list[str] = []

    def run(self) -> int:
        count = 0
        has_run = True  # what came last
        for block in blocks(self.path.read_text(encoding="utf-8")):
            if block.mark == "printed":
                if has_run and block.only in ("", ENGINE):
                    self._compare(block)
            elif block.runs:
                self._execute(block)
                count += 1
                has_run = True
            elif block.only:
                has_run = False
        self._wrong += [
            f"{self.path}:{line}: {promise!r} was promised, and nothing printed"
            for line, promise in self._promises.items()
            if line not in self._kept
        ]
        if self._wrong:
            raise AssertionError("\n".join(self._wrong))
        return count

    def _execute(self, block: Block) -> None:
        lines = enumerate(block.text.splitlines(), block.line)
        found = {number: PROMISE.search(line) for number, line in lines}
        self._promises.update({n: match.group(1) for n, match in found.items() if match})
        # The empty lines give the code's lines the numbers that they have in the page.
        text = _here(block.text, TRANSLATED)
        tree = ast.parse("\n" * (block.line - 1) + text, str(self.path))
        code = compile(tree, str(self.path), "exec")
        self._printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(self._printed):
                if block.mark == "raises":
                    self._expect(code, block)
                else:
                    exec(code, self.names)
        finally:
            print(self._printed.getvalue(), end="", flush=True)

    def _expect(self, code: Any, block: Block) -> None:
        try:
            exec(code, self.names)
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            if block.detail not in names:
                raise
            self._printed.write(f"{type(error).__name__}: {error}\n")
        else:
            raise AssertionError(f"{self.path}:{block.line}: it does not raise {block.detail}")

    def _compare(self, block: Block) -> None:
        printed, shown = self._printed.getvalue(), _here(block.text, PRINTED)
        if not alike(shown, printed):
            self._wrong.append(
                f"{self.path}:{block.line}: shown is\n{shown}\nbut printed was\n{printed}"
            )

    def _print(self, *values: Any, **options: Any) -> None:
        line = sys._getframe(1).f_lineno
        print(*values, **options)
        text = io.StringIO()
        print(*values, **{**options, "file": text})
        promise = self._promises.get(line)
        if promise is None or options.get("file") is not None:
            return
        if not alike(promise, text.getvalue()):
            self._wrong.append(f"{self.path}:{line}: promised {promise}; got {text.getvalue()}")
        self._kept.add(line)


def _here(text: str, translated: Iterable[tuple[re.Pattern[str], str]]) -> str:
    """Return a text as it is for readers of this Python's engine."""
    for pattern, words in translated if ENGINE == "PyTensor" else ():
        text = pattern.sub(words, text)
    return text


def alike(expected: str, printed: str) -> bool:
    """Return whether a text was printed, but for white space, ``...`` and machines' own digits."""
    for pattern, mask in MASKS:
        expected, printed = (re.sub(pattern, mask, text) for text in (expected, printed))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    wanted, got = expected.strip() + "\n", printed.strip() + "\n"
    return doctest.OutputChecker().check_output(wanted, got, options)


if __name__ == "__main__":
    print(f"{Page(Path(sys.argv[1])).run()} blocks ran")
