"""Checks of arguments. Each raises ``ValueError`` that starts with the argument's name and never shows its elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from securefda.rules.blocks import Reals, Vector, squared_norm

LARGEST_SQUARED_NORM = 1e300
"""Above it, inner products may overflow. No float32 vector comes near."""

Choice = TypeVar("Choice", bound=StrEnum)


def vector(name: str, value: npt.ArrayLike, *, size: int | None = None) -> Reals:
    """Return ``value`` as a finite, non-empty vector, of ``size`` elements if given. Float32 is not copied."""
    array = _real_array(name, value, dimensions=1)
    if size is not None and array.size != size:
        raise ValueError(f"{name}: must have {size} elements, has {array.size}")
    _require_finite(name, array)
    return array


def matrix(name: str, value: npt.ArrayLike, *, columns: int | None = None) -> Reals:
    """Return ``value`` as a finite, non-empty matrix, with ``columns`` columns if given. Float32 is not copied."""
    array = _real_array(name, value, dimensions=2)
    if columns is not None and array.shape[1] != columns:
        raise ValueError(f"{name}: must have {columns} columns, has {array.shape[1]}")
    for part in (array.reshape(-1),) if array.flags.c_contiguous else array:
        _require_finite(name, part)
    return array


def layer_sizes(layers: Sequence[int] | None, size: int, *, name: str = "layers") -> tuple[int, ...]:
    """Return the layers' element counts, which are positive and sum to ``size``; None stands for one layer."""
    if layers is None:
        return (size,)
    sizes = tuple(whole_number(name, layer, least=1) for layer in layers)
    if sum(sizes) != size:
        raise ValueError(f"{name}: sizes must sum to {size}, they sum to {sum(sizes)}")
    return sizes


def fractions(name: str, value: npt.ArrayLike, count: int) -> Vector:
    """Return ``value``, one number or one for each of ``count`` sources, as ``(count,)`` numbers in [0, 1]."""
    array = _as_real(name, value)
    if array.shape not in {(), (count,)}:
        raise ValueError(f"{name}: must be one number or have {count} elements, has shape {array.shape}")
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name}: must lie in [0, 1]")
    return np.broadcast_to(array.astype(np.float64), (count,))


def source_weights(value: npt.ArrayLike | None, count: int) -> Vector:
    """Return ``count`` finite weights that are not negative and not all zero; None stands for equal weights."""
    if value is None:
        return np.ones(count)
    array = vector("weights", value, size=count).astype(np.float64)
    if np.any(array < 0) or not array.sum() > 0:
        raise ValueError("weights: must not be negative and must not sum to 0")
    return array


def whole_number(name: str, value: object, *, least: int) -> int:
    """Return ``value`` as an int of at least ``least``. A bool or a float is refused."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < least:
        raise ValueError(f"{name}: must be a whole number of at least {least}, is {value!r}")
    return number


def number_between(name: str, value: object, least: float, most: float, *, open_below: bool = False) -> float:
    """Return ``value`` as a finite float in [least, most], or in (least, most] if ``open_below``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name}: must be a number, is {value!r}")
    number = float(value)
    if not (math.isfinite(number) and least <= number <= most) or (open_below and number == least):
        bounds = f"{'(' if open_below else '['}{least:g}, {most:g}{')' if math.isinf(most) else ']'}"
        raise ValueError(f"{name}: must be finite and lie in {bounds}, is {number:g}")
    return number


def below_one(name: str, value: object) -> float:
    """Return ``value`` as a float in [0, 1)."""
    number = number_between(name, value, 0, 1)
    if number == 1:
        raise ValueError(f"{name}: must be below 1")
    return number


def switch(name: str, value: object) -> bool:
    """Return ``value`` if it is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}: must be true or false, is {value!r}")
    return bool(value)


def choice(name: str, value: str, options: type[Choice]) -> Choice:
    """Return the member of ``options`` that ``value`` is or names."""
    try:
        return options(value)
    except ValueError:
        known = ", ".join(options)
        raise ValueError(f"{name}: must be one of {known}; is {value!r}") from None


def every_field(instance: Hashable) -> None:
    """Check the fields of a frozen dataclass: switches, choices, and what is annotated with its check."""
    for name, check in _checks_of(type(instance)).items():
        object.__setattr__(instance, name, check(name, getattr(instance, name)))


@cache
def _checks_of(owner: type) -> Mapping[str, Callable[[str, Any], object]]:
    found: dict[str, Callable[[str, Any], object]] = {}
    for name, hint in get_type_hints(owner, include_extras=True).items():
        if get_origin(hint) is Annotated:
            found[name] = hint.__metadata__[0]
        elif hint is bool:
            found[name] = switch
        elif isinstance(hint, type) and issubclass(hint, StrEnum):
            found[name] = partial(choice, options=hint)
    return found


def _real_array(name: str, value: npt.ArrayLike, *, dimensions: int) -> Reals:
    array = _as_real(name, value)
    if array.ndim != dimensions or array.size == 0:
        raise ValueError(f"{name}: must be a non-empty array of {dimensions} dimension(s), has shape {array.shape}")
    return array


def _as_real(name: str, value: npt.ArrayLike) -> Reals:
    try:
        array: npt.NDArray[Any] = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: rows must be of equal length") from None
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: must hold real numbers, holds {array.dtype}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _require_finite(name: str, array: Reals) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if not squared_norm(array) <= LARGEST_SQUARED_NORM:
            raise ValueError(f"{name}: must be finite, holds NaN, infinity or a number above 1e150")
