"""A hook of MkDocs: the page of the Python surface, made from the public names and their docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkdocs.structure.files import File

import oarbank_cas
from oarbank_cas import attempt
from oarbank_cas.errors import CasError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PAGE = "python.md"

_STORES = ("Store", "AsyncStore")

_BEYOND = (
    "backends.s3.options.S3Options",
    "gc.retention.Policy",
    "gc.collect.Options",
    "verify.Options",
    "copying.Options",
    "explain.Explanation",
    "pins.Pins",
    "pins.Pin",
)
"""What users meet beyond the public names: what methods of `Store` take, and what stands on it."""

_INTRODUCTION = """# Python

Made from the docstrings of the public names. `from oarbank_cas import NAME` gives each, imported when it is first used;
the [overview](reference.md#python) lists them.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """The page as Markdown, with a line for each name that mkdocstrings fills in."""
    errors = [name for name in oarbank_cas.__all__ if _is_error(getattr(oarbank_cas, name))]
    rest = [name for name in oarbank_cas.__all__ if name not in (*_STORES, *errors)]
    of_attempts = [name for name in attempt.__all__ if name != "all"]  # another name of all_artifacts
    return "\n".join(
        [
            _INTRODUCTION,
            *_section("The store", "oarbank_cas", _STORES),
            *_section("Answers, documents, functions", "oarbank_cas", rest),
            *_section("Errors", "oarbank_cas", sorted(errors, key=lambda name: name != CasError.__name__)),
            *_section("Options and pins", "oarbank_cas", _BEYOND),
            *_section("Attempts: oarbank_cas.attempt", "oarbank_cas.attempt", of_attempts),
        ]
    )


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, CasError)


def _section(title: str, package: str, names: Iterable[str]) -> list[str]:
    return [f"## {title}\n", *(f"::: {package}.{name}\n" for name in names)]
