"""Checking a whole store: bytes against names, entries against headers, references against what is there; and repair.

Nothing is ever deleted here. What is damaged is moved to `damaged/`, after it was read twice; what is healed comes from
verified bytes.
"""

from __future__ import annotations

from oarbank_cas.verify.report import Options, Problem, Report
from oarbank_cas.verify.run import verify

__all__ = ["Options", "Problem", "Report", "verify"]
