"""What operators' work needs of a store: its rooms, without the store that puts them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oarbank_cas.backends.base import Backend
    from oarbank_cas.blobs import Blobs
    from oarbank_cas.descriptor import Descriptor
    from oarbank_cas.lookups import Lookups
    from oarbank_cas.pins import Pins
    from oarbank_cas.results import Results


class Rooms(Protocol):
    """The rooms of one store; a `Store` is one."""

    @property
    def backend(self) -> Backend:
        """Its storage."""

    @property
    def descriptor(self) -> Descriptor:
        """What it says of itself."""

    @property
    def blobs(self) -> Blobs:
        """Its blobs."""

    @property
    def lookups(self) -> Lookups:
        """Its lookups."""

    @property
    def results(self) -> Results:
        """Its results."""

    @property
    def pins(self) -> Pins:
        """Its pins."""
