"""Artifacts of a job attempt: files that a worker declares and writes, and that others read, also while it runs."""

from __future__ import annotations

from oarbank_cas.attempt.artifacts import (
    Content,
    FileDigest,
    Progress,
    Sealed,
    all_artifacts,
    all_or_results,
    content,
    digest_file,
    progress,
    read_content,
    sealed,
)
from oarbank_cas.attempt.declarations import (
    DECLARATIONS,
    FORMATS,
    MAX_DECLARATIONS,
    MAX_DESCRIPTION,
    RESERVED,
    RESULTS,
    Declaration,
    declarations,
    declare,
)
from oarbank_cas.attempt.journal import Journal, append, follow, page, read
from oarbank_cas.attempt.pager import Pager
from oarbank_cas.attempt.records import Record
from oarbank_cas.attempt.scan import INLINE_CAP, MAX_PAGE, Page
from oarbank_cas.attempt.view import AttemptView, DirectoryAttempt, Listed

all = all_artifacts  # noqa: A001 - the contract's name; `all_artifacts` is the one to import

__all__ = [
    "DECLARATIONS",
    "FORMATS",
    "INLINE_CAP",
    "MAX_DECLARATIONS",
    "MAX_DESCRIPTION",
    "MAX_PAGE",
    "RESERVED",
    "RESULTS",
    "AttemptView",
    "Content",
    "Declaration",
    "DirectoryAttempt",
    "FileDigest",
    "Journal",
    "Listed",
    "Page",
    "Pager",
    "Progress",
    "Record",
    "Sealed",
    "all",
    "all_artifacts",
    "all_or_results",
    "append",
    "content",
    "declarations",
    "declare",
    "digest_file",
    "follow",
    "page",
    "progress",
    "read",
    "read_content",
    "sealed",
]
