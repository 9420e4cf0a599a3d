"""Numbers of bytes as people write and read them, in powers of 1024."""

from __future__ import annotations

from oarbank_cas.errors import InvalidInputError

_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SUFFIXES = {"": 1, **{unit: _STEP ** (power + 1) for power, unit in enumerate("kmgtp")}}


def size_text(size: float) -> str:
    """Bytes as `1.5 MiB`."""
    power = 0
    while abs(size) >= _STEP and power < len(_UNITS) - 1:
        size /= _STEP
        power += 1
    return f"{size:.0f} {_UNITS[power]}" if power == 0 else f"{size:.1f} {_UNITS[power]}"


def parse_size(text: str) -> int:
    """Read `1048576`, `500M`, `1.5 TiB`.

    Raises:
        InvalidInputError: it is no number of bytes.
    """
    short = text.strip().lower().removesuffix("b").removesuffix("i")
    number, suffix = (short[:-1], short[-1]) if short[-1:].isalpha() else (short, "")
    try:
        size = int(float(number) * _SUFFIXES[suffix])
    except (ValueError, KeyError, OverflowError):
        size = -1
    if not 0 <= size < 2**63:
        raise InvalidInputError(f"{text!r} is no size: write 1048576, 500M or 2T", "size")
    return size
