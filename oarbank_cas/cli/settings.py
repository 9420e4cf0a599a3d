"""Where the command line finds its store: option, environment, configuration file, or the folder it stands in."""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from oarbank_cas.errors import InvalidInputError

if TYPE_CHECKING:
    from oarbank_cas.backends.s3.options import S3Options

FILE = "oarbank-cas.toml"
DEFAULT_STORE = ".oarbank-cas"
STORE_VARIABLE = "OARBANK_CAS_STORE"

_KNOWN = {"store", "s3"}
_MAX_BYTES = 16 * 1024
"""More is no configuration: reading TOML can take the square of its length in time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration file says.

    Attributes:
        store: the store's URL, or None.
        s3: options of a bucket, or None.
    """

    store: str | None = None
    s3: S3Options | None = None


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
    if store is None:
        return Settings(s3=s3)
    if not isinstance(store, str) or not store:
        raise InvalidInputError("`store` must be a URL or a path", path)
    if "://" not in store and not store.startswith("file:"):
        # A relative path means the same store from wherever the file is used.
        store = os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(store))
    return Settings(store, s3)


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


def s3_options(endpoint_url: str | None, config: str | None) -> S3Options:
    """Options of a bucket: `--endpoint-url` before the configuration file; AWS's own settings fill the rest."""
    from dataclasses import replace

    from oarbank_cas.backends.s3.options import S3Options

    found = read(config).s3 or S3Options()
    return replace(found, endpoint_url=endpoint_url) if endpoint_url else found
