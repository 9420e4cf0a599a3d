"""Where a store is found that nobody names in full: an option, the environment, a configuration file, or here."""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from oarbank_cas.errors import InvalidInputError
from oarbank_cas.sizes import parse_size

if TYPE_CHECKING:
    from oarbank_cas.backends.s3.options import S3Options

FILE = "oarbank-cas.toml"
DEFAULT_STORE = ".oarbank-cas"
STORE_VARIABLE = "OARBANK_CAS_STORE"

CACHE_VARIABLE = "OARBANK_CAS_CACHE"
CACHE_BYTES_VARIABLE = "OARBANK_CAS_CACHE_BYTES"

_KNOWN = {"store", "s3", "cache", "cache_bytes"}
_MAX_BYTES = 16 * 1024
"""More is no configuration: reading TOML can take the square of its length in time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration file says.

    Attributes:
        store: the store's URL, or None.
        s3: options of a bucket, or None.
        cache: the directory of a local cache, or None.
        cache_bytes: bytes that it may hold, or None.
    """

    store: str | None = None
    s3: S3Options | None = None
    cache: str | None = None
    cache_bytes: int | None = None


def read(path: str | None) -> Settings:
    """Read a configuration file.

    Args:
        path: the one named on the command line; else the one here, else the user's, else nothing.

    Raises:
        InvalidInputError: it cannot be read, or says what is not understood.
    """
    candidates = [path] if path else [FILE, os.path.join(click.get_app_dir("oarbank-cas"), FILE)]
    for candidate in candidates:
        try:
            if stat.S_ISFIFO(os.stat(candidate).st_mode):  # which nobody may ever write to
                raise InvalidInputError("is a pipe; remove it, or name the store with --store", candidate)
            with open(candidate, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InvalidInputError(
                f"cannot be read: {error.strerror}; name the store with --store", candidate
            ) from error
        if len(data) > _MAX_BYTES:
            raise InvalidInputError(f"has more than {_MAX_BYTES} bytes", candidate)
        try:
            return _checked(tomllib.loads(data.decode()), candidate)
        except ValueError as error:
            raise InvalidInputError(f"is not TOML: {error}", candidate) from error
        except RecursionError:
            raise InvalidInputError("is nested too deeply", candidate) from None
    if path:
        raise InvalidInputError("is missing", path)
    return Settings()


def _checked(document: dict[str, object], path: str) -> Settings:
    unknown = sorted(document.keys() - _KNOWN)
    if unknown:
        raise InvalidInputError(f"sets `{unknown[0]}`, which is unknown; known: {', '.join(sorted(_KNOWN))}", path)
    store = document.get("store")
    s3 = _s3(document.get("s3"), path)
    if store is not None and (not isinstance(store, str) or not store):
        raise InvalidInputError("`store` must be a URL or a path", path)
    if store is not None and "://" not in store and not store.startswith("file:"):
        store = _beside(path, store)
    kept = document.get("cache")
    if kept is not None and (not isinstance(kept, str) or not kept):
        raise InvalidInputError("`cache` must be a path", path)
    return Settings(store, s3, _beside(path, kept) if kept else None, _size(document.get("cache_bytes"), path))


def _beside(path: str, named: str) -> str:
    """A relative path means the same from wherever the file is used."""
    return os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(named))


def _size(value: object, path: str) -> int | None:
    if value is None:
        return None
    if type(value) is int and value >= 0:
        return value
    if not isinstance(value, str):
        raise InvalidInputError('`cache_bytes` must be a size, such as 500000000 or "500M"', path)
    return parse_size(value)


def _s3(section: object, path: str) -> S3Options | None:
    if section is None:
        return None
    if not isinstance(section, dict):
        raise InvalidInputError("`s3` must be a section, [s3]", path)
    from oarbank_cas.backends.s3.options import S3Options

    return S3Options.from_document(section, path)


def store_url(option: str | None, config: str | None) -> str:
    """The store to use: `--store`, `OARBANK_CAS_STORE`, the configuration file, or `./.oarbank-cas`."""
    if option == "":
        raise InvalidInputError("is empty: is a variable not set?", "--store")
    return option or os.environ.get(STORE_VARIABLE) or read(config).store or DEFAULT_STORE


def cache(option: str | None, size: int | None, config: str | None) -> tuple[str | None, int | None]:
    """The cache to use, and what it may hold: options, then the environment, then the configuration file; else none.

    An empty option or variable means none, whatever comes after it.
    """
    if option is None:
        option = os.environ.get(CACHE_VARIABLE)
    said = os.environ.get(CACHE_BYTES_VARIABLE)
    if size is None and said:
        size = parse_size(said)
    found = read(config) if option is None or size is None else Settings()
    path = found.cache if option is None else option or None
    return path, size if size is not None else found.cache_bytes


def s3_options(endpoint_url: str | None, config: str | None) -> S3Options:
    """Options of a bucket: `--endpoint-url` before the configuration file; AWS's own settings fill the rest."""
    from dataclasses import replace

    from oarbank_cas.backends.s3.options import S3Options

    found = read(config).s3 or S3Options()
    return replace(found, endpoint_url=endpoint_url) if endpoint_url else found
