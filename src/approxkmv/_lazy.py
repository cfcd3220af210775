"""Properties that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy_property(Generic[T]):  # noqa: N801 (used like `property`)
    """A property whose value is computed at its first use and kept in the object.

    There is no lock: two threads may both compute the value, and one of them is kept.
    ``functools.cached_property`` has a lock up to Python 3.11, one for the objects of all threads:
    products in several threads would wait for each other, and a process that is forked meanwhile
    would wait for ever.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy_property[T] | T:
        if instance is None:
            return self
        # From now on the value is found in the object before this descriptor is.
        value: T = vars(instance).setdefault(self.name, self.function(instance))
        return value
