"""How far segments can be read: what `Client.horizons` takes and answers."""

from participants.api.models import HorizonPlace, HorizonsAnswer, SegmentHorizon

__all__ = ["HorizonPlace", "HorizonsAnswer", "SegmentHorizon"]
