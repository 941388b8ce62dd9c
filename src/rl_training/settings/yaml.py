"""Reading and writing YAML: plain data only, with the line of every entry for error messages.

Numbers are those of YAML 1.2 (`1e6`, `1_000_000`, `0x1F`). Files that are too long, too deep, or grow without
end when their aliases are followed are refused, and so are tags: nothing in a config makes an object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from rl_training.errors import ConfigError, KeyPath

MAX_BYTES = 100_000  # a long config has 5 000
MAX_DEPTH = 20
MAX_ENTRIES = 10_000


class Located(NamedTuple):
    """Plain data and the line, counted from 1, of each entry in it."""

    data: Any
    lines: dict[KeyPath, int]


def read_text(path: Path) -> str:
    """The text of a file, if it is of a sane size."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES // 1000} kB, the limit for a config")
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text") from None


def parse_yaml(text: str, place: str) -> Located:
    """Parse one YAML document; errors read `place:LINE: what is wrong`."""
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        problem = error.problem or error.context or "cannot be read"
        # What is never closed is noticed at the end of the file, but put right where it was opened.
        mark = error.context_mark if re.search("stream end|end of stream", problem) else error.problem_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{place}:{line}: broken YAML: {problem}") from None
    except YAMLError as error:
        raise ConfigError(f"{place}:1: broken YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{place}:1: nested more than {MAX_DEPTH} levels deep") from None
    lines: dict[KeyPath, int] = {}
    return Located(None if root is None else _data(root, (), lines, place), lines)


def _data(node: Node, path: KeyPath, lines: dict[KeyPath, int], place: str) -> Any:
    """The plain data under a node; notes the line of every entry on the way."""
    line = lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"{place}:{line}: nested more than {MAX_DEPTH} levels deep")
    if len(lines) > MAX_ENTRIES:
        raise ConfigError(f"{place}:{line}: more than {MAX_ENTRIES} entries")
    if isinstance(node, ScalarNode):
        return _scalar(node, f"{place}:{line}")
    if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        raise ConfigError(f"{place}:{line}: tags such as {node.tag!r} are not allowed")
    if not isinstance(node, MappingNode):
        return [_data(child, (*path, index), lines, place) for index, child in enumerate(node.value)]
    data: dict[str, Any] = {}
    for key_node, child in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise ConfigError(f"{place}:{line}: merge keys (<<) are not supported; use `extends: CONFIG`")
        key = _scalar(key_node, f"{place}:{line}") if isinstance(key_node, ScalarNode) else key_node.value
        if not isinstance(key, str):
            raise ConfigError(f"{place}:{line}: a key must be text, not {str(key)[:40]!r}")
        if key in data:
            raise ConfigError(f"{place}:{line}: {key!r} appears twice, first in line {lines[(*path, key)]}")
        lines[(*path, key)] = line
        data[key] = _data(child, (*path, key), lines, place)
    return data


def _scalar(node: ScalarNode, place: str) -> Any:
    kind, text = str(node.tag).removeprefix("tag:yaml.org,2002:"), node.value
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            digits = text.replace("_", "")
            return int(digits, 0 if re.match(r"[-+]?0[xob]", digits) else 10)
        if kind == "float":
            return float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        raise ConfigError(f"{place}: {text[:40]!r} is not a number") from None
    if kind in ("str", "timestamp", "value", "merge"):  # nothing here wants dates or merges: they are text
        return text
    raise ConfigError(f"{place}: tags such as {node.tag!r} are not allowed")


def plain(value: object) -> Any:
    """A copy of a value made of numbers, text, lists and mappings only; anything else is a ValueError.

    What passes can be written to YAML and read back equal, which is what a run's stored config rests on.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"must have strings as keys, not {key!r}")
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Real) and hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must hold finite numbers, not {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"must hold numbers, text, lists and mappings only, not {type(value).__name__}")


def to_yaml(value: object) -> str:
    """Plain data on one line, in YAML's flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_yaml(key)}: {to_yaml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_yaml, value)) + "]"
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    return json.dumps(value)  # JSON's numbers and constants are YAML's


def _is_plain(text: str) -> bool:
    """Whether text needs no quotes, for readers of older YAML too, to whom `yes` and `off` are no text."""
    words = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
    return re.fullmatch(r"[A-Za-z][\w/.-]*", text, re.ASCII) is not None and text.lower() not in words


def _quoted(text: str) -> str:
    plainly = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plainly)}"'
