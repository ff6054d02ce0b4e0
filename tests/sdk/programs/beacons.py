"""Lights between an activity and the driver beside it, for moments that history does not show."""

import asyncio
from collections import defaultdict

_BEACONS: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


def beacon(name: str) -> asyncio.Event:
    """The light of that name, shared by everything in this process."""
    return _BEACONS[name]
