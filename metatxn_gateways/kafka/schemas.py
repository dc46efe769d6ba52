"""Kafka's messages as kio has them, loaded when a version of one is first used: loading all takes seconds."""

from __future__ import annotations

import io
from dataclasses import fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any, get_args

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from metatxn.service.security.principal import ANYONE, Principal
from metatxn_gateways.listener import MalformedRequest


class CallRequest:
    """The fields of a request; one that its version does not have is None. `caller` is who has sent it,
    from that `address`, and `client` what it calls itself."""

    def __init__(self, entity: Any, caller: Principal = ANYONE, address: str | None = None, client: str = "") -> None:
        self._entity = entity
        self.caller = caller
        self.address = address
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entity, name, None)


def read_call(
    api_key: int,
    version: int,
    body: memoryview,
    caller: Principal = ANYONE,
    address: str | None = None,
    client: str = "",
) -> CallRequest:
    """Read a request. Raises `MalformedRequest`."""
    read = _reader(api_key, version)
    try:
        entity, _ = read(bytes(body), 0)  # librdkafka leaves three bytes too many behind a request for all topics
        _refuse_nulls(entity)
    except (SerialError, ValueError, TypeError, OverflowError, LookupError) as error:  # KeyError: an unknown tag
        raise MalformedRequest(f"request {api_key} in version {version}: {error!r}") from None
    return CallRequest(entity, caller, address, client)


class CallResponse:
    """Makes the structures of one response, without the fields that its version does not have."""

    def __init__(self, api_key: int, version: int) -> None:
        self.version = version
        self._module = _module(api_key, version, EntityType.response)
        self._write = _writer(api_key, version)

    def make(self, kind: str, /, **values: Any) -> Any:
        structure = getattr(self._module, kind)
        known = {field.name for field in fields(structure)}
        return structure(**{field: value for field, value in values.items() if field in known})

    def encoded(self, entity: Any) -> bytes:
        buffer = io.BytesIO()
        self._write(buffer, entity)
        return buffer.getvalue()


def _refuse_nulls(entity: Any) -> None:
    """A null list is read as None also where the protocol knows no null. Raises `ValueError`."""
    for field in fields(entity):
        value = getattr(entity, field.name)
        if value is None and type(None) not in get_args(field.type):
            raise ValueError(f"{field.name} is null")
        if isinstance(value, tuple):
            for item in value:
                if is_dataclass(item):
                    _refuse_nulls(item)


@cache
def _module(api_key: int, version: int, kind: EntityType) -> ModuleType:
    found: ModuleType = load_payload_module(api_key, version, kind)
    return found


def _entity(api_key: int, version: int, kind: EntityType) -> Any:
    """The outermost structure, which is the last class of its module."""
    module = _module(api_key, version, kind)
    (found,) = (each for each in vars(module).values() if getattr(each, "__type__", None) is kind)
    return found


@cache
def _reader(api_key: int, version: int) -> Any:
    return entity_reader(_entity(api_key, version, EntityType.request))


@cache
def _writer(api_key: int, version: int) -> Any:
    return entity_writer(_entity(api_key, version, EntityType.response))


@cache
def is_flexible(api_key: int, version: int) -> bool:
    return bool(_entity(api_key, version, EntityType.request).__flexible__)
