"""Every map of a request may be written as `[]` when it is empty, as PHP does. See `core/maps.py`.

Members are found in the declarations, so that a new one cannot be forgotten.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.inspect import DictType, ListType, StructType, Type, UnionType, type_info

from tests.architecture.source import MODULES

NOT_OF_REQUESTS = {
    "perdure.features.model_calls.completions": "answers of models",
    "perdure.protocols.durablex.timeline": "events that we wrote",
    "perdure.protocols.durablex.views": "events that we wrote",
}
OF_OUR_EVENTS = {"_Event", "_Payload"}


def structures() -> Iterator[type[Struct]]:
    """Every structure of both protocols that is decoded from what somebody else sent."""
    for module in MODULES:
        if module.room != "protocols":
            continue
        name = f"perdure.{module.place.removesuffix('.py').replace('/', '.')}"
        if name in NOT_OF_REQUESTS:
            continue
        for value in vars(importlib.import_module(name)).values():
            is_ours = isinstance(value, type) and issubclass(value, Struct)
            if not is_ours or value.__module__ != name or value.__struct_config__.frozen:
                continue
            if value.__name__ not in OF_OUR_EVENTS:
                yield value


def alternatives(kind: Type) -> tuple[Type, ...]:
    return kind.types if isinstance(kind, UnionType) else (kind,)


def is_map(kind: Type) -> bool:
    """Whether `{}` is a value of this kind."""
    if isinstance(kind, StructType):
        return kind.tag is None and not any(field.required for field in kind.fields)
    return isinstance(kind, DictType)


def takes_empty_list(kind: Type) -> bool:
    return any(isinstance(one, ListType) and one.max_length == 0 for one in alternatives(kind))


def places(kind: Type) -> Iterator[Type]:
    """A kind, and that of the items of a list."""
    yield kind
    for one in alternatives(kind):
        if isinstance(one, ListType) and one.max_length != 0:
            yield from places(one.item_type)


def unwrapped(kind: Type) -> Type:
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return kind


def map_members() -> Iterator[Any]:
    for structure in structures():
        told = type_info(structure)
        assert isinstance(told, StructType)
        for field in told.fields:
            for kind in places(unwrapped(field.type)):
                if any(is_map(unwrapped(one)) for one in alternatives(kind)):
                    name = f"{structure.__name__}.{field.name}"
                    yield pytest.param(kind, id=name)


@pytest.mark.parametrize("kind", list(map_members()))
def test_a_map_may_come_as_an_empty_list(kind: Type) -> None:
    assert takes_empty_list(kind), "declare it with `Map` or `EmptyList` of core/maps.py"


def test_there_are_maps() -> None:
    names = {parameter.id for parameter in map_members()}
    assert {"StartBody.memo", "Opcode.retry", "WireScheduleActivity.retry_policy"} <= names
