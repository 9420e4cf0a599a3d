"""Values of options that a person writes: sizes, moments, seconds. A wrong one is a wrong command line."""

from __future__ import annotations

import math
from typing import Any

import click

from oarbank_cas import instants
from oarbank_cas.errors import InvalidInputError
from oarbank_cas.sizes import parse_size


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: `1048576`, `500M`, `2T`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """See `click.ParamType.convert`."""
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except InvalidInputError as error:
            self.fail(error.why, param, ctx)


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A date or a moment, RFC 3339; in UTC where it does not say."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """See `click.ParamType.convert`."""
        try:
            return instants.to_text(instants.from_text(str(value)))
        except InvalidInputError as error:
            self.fail(error.why, param, ctx)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds above 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """See `click.ParamType.convert`."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no number of seconds above 0", param, ctx)
        return seconds
