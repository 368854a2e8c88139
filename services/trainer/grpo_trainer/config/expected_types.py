"""Which types a setting may have, by its annotation."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel


def _kinds(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _kinds(part)
    elif origin is Literal:
        yield from {type(value) for value in get_args(annotation)}
    else:
        yield annotation


@dataclass(frozen=True)
class Expected:
    """The types that a setting may have."""

    annotation: Any
    kinds: tuple[Any, ...]

    @classmethod
    def of(cls, annotation: Any) -> Self:
        return cls(annotation, tuple(_kinds(annotation)))

    def has(self, *types: Any) -> bool:
        return any((get_origin(kind) or kind) in types for kind in self.kinds)

    @property
    def model(self) -> type[BaseModel] | None:
        return next((kind for kind in self.kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)

    @property
    def item(self) -> Any:
        return next((get_args(kind)[0] for kind in self.kinds if get_origin(kind) is list), Any)

    def of_key(self, name: str) -> Any:
        if self.model is not None:
            field = self.model.model_fields.get(name)
            return field.annotation if field is not None else Any
        return next((get_args(kind)[1] for kind in self.kinds if get_origin(kind) is dict), Any)


TEXT = Expected.of(str)
