"""Text for the terminal, with control characters escaped.

Names and messages from files, and names of files, may hold escape sequences that set a title, move the cursor or turn
text around. The command line puts `Escaped` around stdout and stderr, so that whoever prints, it passes here; displays,
which Python programs use as well, call `printable` themselves.
"""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

# Control characters, formatting ones (such as those that change the direction of text), halves of characters, and the
# two separators that some terminals take for the end of a line.
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


class _Escapes(dict[int, str]):
    """Character -> what is shown of it; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        steers = unicodedata.category(chr(code)) in STEERING and chr(code) not in "\n\t"
        self[code] = ascii(chr(code))[1:-1] if steers else chr(code)
        return self[code]


_escapes = _Escapes()


def printable(text: str) -> str:
    r"""The text with steering characters written out: `\x1b`, `\r`, `\u202e`. Lines and tabs stay."""
    return text if text.isprintable() else text.translate(_escapes)


def printable_line(text: object) -> str:
    """The same in one line."""
    return printable(str(text)).replace("\n", "\\n")


class Escaped:
    """A text stream through which no steering character passes."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def escape_streams() -> tuple[Any, Any]:
    """Put `Escaped` around stdout and stderr where it is not yet; the streams as they were."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream if isinstance(stream, Escaped) else Escaped(stream) for stream in before)
    return before


def unescaped(stream: object) -> Any:
    """The stream below, for what is meant to steer the terminal: a live panel, the picture of an environment."""
    return stream.stream if isinstance(stream, Escaped) else stream
