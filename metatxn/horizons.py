"""How far segments can be read: the parameters and results of `Client.horizons`."""

from metatxn.wire.broker import HorizonPlace, HorizonsAnswer, SegmentHorizon

__all__ = ["HorizonPlace", "HorizonsAnswer", "SegmentHorizon"]
