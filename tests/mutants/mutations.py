"""What can be changed in a source file, one small change at a time: operators, constants, conditions, statements that
are dropped, knobs read from the config, online in place of target networks.

Left alone are texts, types, refusals (`raise` and what it says) and assertions (`assert`, `zip(strict=True)`): what
they say is wording, and what they assert never happens.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {
    "min": "max",
    "max": "min",
    "amin": "amax",
    "amax": "amin",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "argmin": "argmax",
    "clamp_min": "clamp_max",
    "clamp_max": "clamp_min",
    "cumsum": "cumprod",
    "cumprod": "cumsum",
}
# What a slow copy follows: whoever takes it in place of the copy has no target network.
FOLLOWED = {
    "target": "self.agent.network",
    "target_critics": "self.critics",
    "slow_critic": "self.agent.network.critic",
}


LEFT_ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import)


class Mutation(NamedTuple):
    """One change: where it is, in which function (by its qualified name; "": any of the file), and how to make it."""

    line: int
    function: str
    kind: str
    before: str
    after: str
    make: Callable[[], None]  # in the tree that it was found in
    number: int = 0  # among changes of the function that read the same


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """All changes of a file, in the order of its text."""
    seen: Counter[tuple[str, ...]] = Counter()
    places = function_names(tree)
    for each in _of_statements(tree):
        function = name_at(places, each.line)
        same = (function, each.kind, each.before, each.after)
        yield each._replace(function=function, number=seen[same])
        seen[same] += 1


def function_names(tree: ast.Module) -> list[tuple[range, str]]:
    """The lines and the qualified name of every function of a file, inner ones after those they are in."""
    found: list[tuple[range, str]] = []

    def look(node: ast.AST, outer: str) -> None:
        for part in ast.iter_child_nodes(node):
            name = outer
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                name = f"{outer}.{part.name}" if outer else part.name
                first = min([part.lineno, *(decorator.lineno for decorator in part.decorator_list)])
                if isinstance(part, ast.FunctionDef):
                    found.append((range(first, (part.end_lineno or first) + 1), name))
            look(part, name)

    look(tree, "")
    return found


def name_at(places: list[tuple[range, str]], line: int) -> str:
    """The innermost function of a line; "" outside of all."""
    return next((name for lines, name in reversed(places) if line in lines), "")


def _of_statements(tree: ast.Module) -> Iterator[Mutation]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign):  # a constant of the module
            yield from _inside(statement, "value", None)
        else:
            yield from _functions(statement)


def _functions(node: ast.AST) -> Iterator[Mutation]:
    if isinstance(node, ast.FunctionDef):
        for index in range(len(node.body)):
            yield from _inside(node, "body", node, index)
    elif isinstance(node, ast.ClassDef):
        for part in node.body:
            yield from _functions(part)


def _inside(
    holder: Any, field: str, within: ast.FunctionDef | None, index: int | None = None
) -> Iterator[Mutation]:
    """All changes of what a field of `holder` holds, or the `index`-th of it."""
    node = getattr(holder, field) if index is None else getattr(holder, field)[index]
    if not isinstance(node, ast.AST) or isinstance(node, LEFT_ALONE) or _asserts(node):
        return

    def replace(new: ast.AST) -> None:
        if index is None:
            setattr(holder, field, new)
        else:
            getattr(holder, field)[index] = new

    for kind, new in _changed(node, within):
        ast.copy_location(new, node)
        before, after = (ast.unparse(ast.fix_missing_locations(part))[:160] for part in (node, new))
        line = getattr(node, "lineno", 0)
        yield Mutation(line, "", kind, before, after, lambda new=new: replace(new))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args", "ctx") and not isinstance(
            node, ast.Call
        ):
            continue
        if isinstance(value, list):
            for number, part in enumerate(value):
                if isinstance(part, ast.AST):
                    yield from _inside(node, name, within, number)
        elif isinstance(value, ast.AST):
            yield from _inside(node, name, within)


def _changed(node: Any, within: ast.FunctionDef | None) -> Iterator[tuple[str, ast.AST]]:
    """What can stand in place of one node, and what kind of change that is."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "operator", _with(node, ops=[SWAPS[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        yield "operator", _with(node, op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield "operator", copy.deepcopy(node.operand)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield from _wires(node, within)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    if _only_acts(node):
        yield "dropped", ast.Pass()


def _asserts(node: ast.AST) -> bool:
    """Whether a part of a call is an assertion: `zip(..., strict=True)`, of lengths that are always the same."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _only_acts(node: Any) -> bool:
    """Whether a statement names nothing that others need: without it no name is missing."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def _other_constants(value: Any) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
    elif isinstance(value, float):
        yield "constant", ast.Constant(value * 2 if value else 1.0)


def _wires(node: ast.Attribute, within: ast.FunctionDef | None) -> Iterator[tuple[str, ast.AST]]:
    """`now.X` from the config, and what a target network follows in its place."""
    names = [argument.arg for argument in within.args.args] if within is not None else []
    assert isinstance(node.value, ast.Name)
    if node.value.id == "now" and isinstance(node.ctx, ast.Load) and ("self" in names or "config" in names):
        config = "self.config" if "self" in names else "config"
        yield "knob", ast.parse(f"{config}.{node.attr}", mode="eval").body
    after_init = within is not None and within.name != "__init__"
    if after_init and node.value.id == "self" and node.attr in FOLLOWED and isinstance(node.ctx, ast.Load):
        yield "target", ast.parse(FOLLOWED[node.attr], mode="eval").body


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in NAMES:
        yield "operator", _with(node, func=ast.Name(NAMES[called.id], ast.Load()))
    elif isinstance(called, ast.Attribute) and called.attr in NAMES:
        yield "operator", _with(node, func=_with(called, attr=NAMES[called.attr]))
    elif isinstance(called, ast.Attribute) and called.attr == "detach":
        yield "dropped", copy.deepcopy(called.value)


def _with(node: Any, **changes: Any) -> Any:
    new = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new
