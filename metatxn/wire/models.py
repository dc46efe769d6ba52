"""Wire models that both services answer with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


def example(**members: Any) -> ConfigDict:
    """What the OpenAPI page shows of a model."""
    return ConfigDict(json_schema_extra={"example": members})


class Process(BaseModel):
    id: str
    url: str


class Cluster(BaseModel):
    """Who serves where, and the revision of the metadata store at which this was read (for `snapshot` reads)."""

    model_config = example(
        coordinators=[{"id": "c1", "url": "http://127.0.0.1:8470"}],
        brokers=[{"id": "b1", "url": "http://127.0.0.1:8471"}],
        revision=1042,
    )

    coordinators: list[Process]
    brokers: list[Process]
    revision: int


class Liveness(BaseModel):
    """The process answers; whether it can serve is said by `Health`."""

    model_config = example(status="ok")

    status: Literal["ok"] = "ok"


class Health(BaseModel):
    """`ready` is false while something is missing; `waiting_for` says what."""

    model_config = example(ready=True, waiting_for={})

    ready: bool
    waiting_for: dict[str, str] = {}
