"""Classes and functions of a notebook or script, written into a module that the processes of a run can import.

What is written is their source and that of all that they use from there, with the imports that they need: no pickle, so
a reader sees what a site runs.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from securefda.errors import ConfigError

_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_HINT = "move it with what it uses to a module, such as my_task.py beside the notebook; rows go into task_from"


class Sources:
    """The source of objects that were defined in ``__main__``, with all that they use.

    Raises:
        ConfigError: from ``add``, where something cannot be written as source.
    """

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self.modules: set[str] = set()
        """Names of the modules that are imported."""

    def add(self, found: Any) -> str:
        """Include a class or function with what it uses, and return its name in the module."""
        name: str = getattr(found, "__name__", "") or type(found).__name__
        if is_of_main(found):
            self._define(name, found)
        elif name.isidentifier() and (module := _home_of(found, name)):
            self._import(name, module, f"from {module} import {name}")
        else:
            raise _cannot(name, f"is a {type(found).__name__}, and neither a class nor a function with a name")
        return name

    def text(self, heading: str, *last: str) -> str:
        """Return the module: a docstring, imports, and definitions, each after what it uses, and then ``last``."""
        imports = "\n".join(sorted(set(self._imports.values())))
        return "\n\n\n".join(part for part in (f'"""{heading}"""\n\n{imports}', *self._parts.values(), *last)) + "\n"

    def _import(self, name: str, module: str, line: str) -> None:
        self._imports[name] = line
        self.modules.add(module)

    def _define(self, name: str, found: Any) -> None:
        if name in self._parts or name in self._imports:
            return
        source, defined_in = _source_of(found, name)
        self._parts[name] = ""  # known from now on: functions may call each other
        for used in _globals_of(source):
            if used in defined_in:
                self._include(used, defined_in[used], name)
            elif not hasattr(builtins, used):
                raise _cannot(name, f"uses {used}, which is not defined")
        del self._parts[name]
        self._parts[name] = source

    def _include(self, name: str, value: Any, user: str) -> None:
        if name in self._imports or name in self._parts:
            return
        if isinstance(value, ModuleType):
            alias = "" if value.__name__ == name else f" as {name}"
            self._import(name, value.__name__, f"import {value.__name__}{alias}")
        elif _is_plain(value):
            self._parts[name] = f"{name} = {value!r}"
        elif is_of_main(value) and value.__name__ == name:
            self._define(name, value)
        elif module := _home_of(value, name):
            self._import(name, module, f"from {module} import {name}")
        elif (own := getattr(value, "__name__", "")) and (module := _home_of(value, own)):
            self._import(name, module, f"from {module} import {own} as {name}")
        else:
            raise _cannot(user, f"uses {name}, a {type(value).__name__} that cannot be written as source")


def is_of_main(found: Any) -> bool:
    """Whether this is a class or function that a notebook, a script or an interactive session has defined."""
    return isinstance(found, type | FunctionType) and found.__module__ == "__main__"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return type(value) in _PLAIN and repr(value) not in ("nan", "inf", "-inf")


def _home_of(value: Any, name: str) -> str:
    """Return the shortest name of a module from which ``value`` can be imported as ``name``; empty for none."""
    homes = [
        module.__name__
        for key, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and key == module.__name__ != "__main__"
        and vars(module).get(name, Sources) is value
    ]
    public = [home for home in homes if not any(part.startswith("_") for part in home.split("."))]
    return min(public or homes, key=len, default="")


def _source_of(found: Any, name: str) -> tuple[str, Mapping[str, Any]]:
    """Return the source of a class or function, and the names among which it was defined."""
    if not name.isidentifier():
        raise _cannot("a lambda", "has no name", hint="write it as a function: def make_model(): ...")
    if "<locals>" in found.__qualname__ or getattr(found, "__closure__", None):
        raise _cannot(name, "was defined inside a function", hint="define it at the top level")
    kind = ast.ClassDef if isinstance(found, type) else ast.FunctionDef
    for function in [found] if isinstance(found, FunctionType) else _methods_of(found):
        code = function.__code__
        text = "".join(linecache.getlines(code.co_filename, function.__globals__))
        for node in reversed(ast.parse(text).body):  # a cell may define a name twice
            if isinstance(node, kind) and node.name == name:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    return "\n".join(text.splitlines()[first - 1 : node.end_lineno]), function.__globals__
    raise _cannot(name, "has no source that can be read, as in an interactive session")


def _methods_of(found: type) -> Iterator[FunctionType]:
    """Yield the methods of a class: a notebook knows the source of a function, and of a class only by one."""
    for value in vars(found).values():
        inner = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if isinstance(inner, FunctionType):
            yield inner


def _globals_of(source: str) -> list[str]:
    """Return the names that a definition takes from around it, in the order of the alphabet."""
    top = symtable.symtable(textwrap.dedent(source), "source", "exec")
    own = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}
    used = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    left = list(top.get_children())
    while left:
        scope = left.pop()
        left += scope.get_children()
        used |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return sorted(used - own - {"__class__"})


def _cannot(name: str, why: str, *, hint: str = _HINT) -> ConfigError:
    return ConfigError(name, f"{why}, so no process can import it", hint=hint)
