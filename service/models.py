"""Wire models that both services answer with."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Process(BaseModel):
    id: str
    url: str


class Cluster(BaseModel):
    """Who serves where, and the revision of the metadata store at which this was read (for `snapshot` reads)."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "coordinators": [{"id": "c1", "url": "http://127.0.0.1:8470"}],
                "brokers": [{"id": "b1", "url": "http://127.0.0.1:8471"}],
                "revision": 1042,
            }
        }
    )

    coordinators: list[Process]
    brokers: list[Process]
    revision: int


class Health(BaseModel):
    """`ready` is false while something is missing; `waiting_for` says what."""

    ready: bool
    waiting_for: dict[str, str] = {}
