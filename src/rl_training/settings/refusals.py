"""Config errors: one line with the key and its location in the config."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rl_training.errors import ConfigError, KeyPath, did_you_mean


class FieldError(ConfigError):
    """A refusal of one entry; the message begins with its name, and `path` leads to it."""

    def __init__(self, message: str, path: KeyPath = ()) -> None:
        super().__init__(message.replace("\n", " ")[:500], path)

    def renamed(self, written: Mapping[str, str]) -> FieldError:
        """The same refusal under the name the user wrote, given field name -> written key."""
        if not self.path or self.path[0] not in written:
            return self
        name, key = str(self.path[0]), written[str(self.path[0])]
        return FieldError(re.sub(rf"^{name}\b", key, str(self)), (key, *self.path[1:]))


def refused(key: str, reason: str) -> FieldError:
    """The refusal of one key by a check over several: "num_minibatches must be at most 8"."""
    return FieldError(f"{key} {reason}", (key,))


_WRONG = {  # pydantic's name of an error -> our words for it
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be {expected}",
}


def explain(fields: Mapping[str, FieldInfo], failure: ValidationError) -> FieldError:
    """The first of pydantic's errors as one line."""
    error = failure.errors(include_url=False)[0]
    path, value = error["loc"], error.get("input")
    if not path:  # a check over several fields, which names the one to change
        raised = error.get("ctx", {}).get("error")
        return raised if isinstance(raised, FieldError) else FieldError(error["msg"])
    name = str(path[0])
    entry = name + "".join(f"[{index}]" for index in path[1:])
    if error["type"] == "missing":
        return FieldError(f"{name} is missing", path)
    if error["type"] == "string_pattern_mismatch":
        what = fields[name].description or error["msg"]
        return FieldError(f"{name} cannot be {show(value)}: {what}", path)
    what = _WRONG.get(error["type"], error["msg"].removeprefix("Value error, ")).format(
        **error.get("ctx", {})
    )
    hint = ""
    if error["type"] == "literal_error" and isinstance(value, str):
        hint = did_you_mean(value, re.findall(r"'([^']*)'", what))
    return FieldError(f"{entry} {what}, not {show(value)}{hint}", path)


def show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
