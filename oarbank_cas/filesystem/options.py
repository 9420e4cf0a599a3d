"""What storage options say about a store: which one, and how it is opened. Settings fill in what they leave open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from oarbank_cas import opening, settings
from oarbank_cas.backends.s3.options import S3Options, parse_url
from oarbank_cas.errors import InvalidInputError, UnsupportedError
from oarbank_cas.store import Store

if TYPE_CHECKING:
    from typing import TypeAlias

    Path: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True)
class StoreOptions:
    """How a store is opened. Immutable, and checked when it is made.

    Attributes:
        store: its URL; an empty one means what settings say at the time.
        s3: options of a bucket; None for those that settings say.
        config: the configuration file; None for those of the command line.
        cache: the directory of a local cache; empty for none, None for what settings say.
        cache_bytes: bytes that it may hold.
        read_only: refuse every change.
    """

    store: str
    s3: S3Options | None
    config: str | None
    cache: str | None
    cache_bytes: int | None
    read_only: bool

    def url(self) -> str:
        """The store's URL; a directory by its absolute path."""
        return self.store or checked_url(settings.store_url(None, self.config))

    def s3_for(self, url: str) -> S3Options | None:
        """The options of a bucket, where a URL names one."""
        return (self.s3 or settings.s3_options(None, self.config)) if opening.is_s3(url) else None

    def open(self, url: str) -> Store:
        """Open the store of a URL.

        Raises:
            CasError: what `Store.open` raises.
        """
        cache, cache_bytes = settings.cache(self.cache, self.cache_bytes, self.config)
        return Store.open(
            url, read_only=self.read_only, s3=self.s3_for(url), cache=cache or None, cache_bytes=cache_bytes
        )

    def pinned(self) -> dict[str, Any]:
        """The storage options that lead to the same store on another machine, whatever its settings say."""
        url = self.url()
        s3 = self.s3_for(url)
        standard = S3Options()
        said = {each.name: getattr(s3, each.name) for each in fields(S3Options)} if s3 is not None else {}
        said = {name: value for name, value in said.items() if value != getattr(standard, name)}
        return {"store": url} | ({"s3": said} if said else {})


def store_options(
    store: Path | None,
    s3: S3Options | Mapping[str, object] | None,
    chain: tuple[str | None, str | None, Mapping[str, object] | None],
    *,
    config: str | None,
    cache: Path | None,
    cache_bytes: int | None,
    read_only: bool,
) -> StoreOptions:
    """Put together what storage options say.

    Args:
        store: the option `store`.
        s3: the option `s3`.
        chain: of a URL that is chained to this one's: its path, its protocol, its options. It names the store.
        config: the option `config`.
        cache: the option `cache`.
        cache_bytes: the option `cache_bytes`.
        read_only: the option `read_only`.

    Raises:
        InvalidInputError: one says what cannot be.
        UnsupportedError: the store is of another kind of storage.
    """
    path, protocol, options = chain
    if path is not None:
        if store is not None:
            raise InvalidInputError("is one too many: the chained URL names the store", "storage option store")
        store = _chained(path, protocol)
        s3 = options or s3
    if s3 is not None and not isinstance(s3, S3Options):
        s3 = S3Options.from_document(s3, "storage option s3")
    return StoreOptions(
        store=checked_url(store) if store is not None else "",
        s3=s3,
        config=config,
        cache=os.fspath(cache) if cache is not None else None,
        cache_bytes=cache_bytes,
        read_only=read_only,
    )


def checked_url(url: Path) -> str:
    """A store's URL that is well-formed and holds no credential; a directory by its absolute path.

    Raises:
        InvalidInputError, UnsupportedError: it is no such URL.
    """
    if opening.is_s3(url):
        return parse_url(os.fspath(url)).url
    return os.path.abspath(opening.directory_of(url))


def _chained(path: str, protocol: str | None) -> str:
    if protocol in ("file", "local"):
        return path
    if protocol in ("s3", "s3a"):
        return f"s3://{path}"
    raise UnsupportedError(f"{protocol}:// holds no store: chain a directory (file://) or a bucket (s3://)")
