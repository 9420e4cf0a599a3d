"""Payload upgrades: older result payloads read as a module's newest, while what is stored stays as written."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from oarbank_cas.contracts.places import quoted
from oarbank_cas.errors import InvalidInputError

Payload: TypeAlias = dict[str, Any]
Upgrade: TypeAlias = Callable[[Payload], Payload]

_RESULT_REFERENCE: Final = re.compile(r"([a-z0-9][a-z0-9.-]*/result@)([1-9][0-9]{0,17})")


class Upgrades:
    """A registry of upgrade functions, each from one payload version to the next.

    There is no global one: who reads results makes a registry, fills it and asks it.
    """

    def __init__(self) -> None:
        self._steps: dict[str, tuple[str, Upgrade]] = {}

    def register(self, schema: str, function: Upgrade) -> None:
        """Register the step from one version to the next.

        Args:
            schema: the version that the function reads, `<module>/result@N`.
            function: takes a payload of version N, which it may change, and returns one of version N+1.

        Raises:
            InvalidInputError: the reference is malformed, or has a function already.
        """
        match = _RESULT_REFERENCE.fullmatch(schema)
        if match is None:
            raise InvalidInputError("is no result reference (<module>/result@N)", quoted(schema))
        if schema in self._steps:
            raise InvalidInputError("has an upgrade function already", quoted(schema))
        # A step only ever leads from N to N+1, so no chain of them can turn in a circle.
        self._steps[schema] = (f"{match[1]}{int(match[2]) + 1}", function)

    def upgrade(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Read a result envelope in the newest version that the registry leads to.

        Args:
            document: the parsed envelope; it is not changed.

        Returns:
            A new document with `schema` and `payload` upgraded and all else the same; if there is no step, a copy.

        Raises:
            TypeError: an upgrade function returned something that is no payload.
        """
        upgraded = dict(document)
        reference = upgraded.get("schema")
        if not isinstance(reference, str) or reference not in self._steps:
            return upgraded
        payload: Any = copy.deepcopy(upgraded.get("payload"))
        while reference in self._steps:
            following, function = self._steps[reference]
            payload = function(payload)
            if not isinstance(payload, dict):
                raise TypeError(f"the upgrade of {reference} returned a {type(payload).__name__}, not a payload")
            reference = following
        upgraded["schema"] = reference
        upgraded["payload"] = payload
        return upgraded
