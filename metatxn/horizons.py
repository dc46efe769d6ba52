"""How far segments can be read: what `Client.horizons` takes and answers."""

from metatxn.wire.broker import HorizonPlace, HorizonsAnswer, SegmentHorizon

__all__ = ["HorizonPlace", "HorizonsAnswer", "SegmentHorizon"]
