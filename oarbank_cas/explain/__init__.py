"""Why a job is a hit or a miss: what stands, what ended it, what it lacks, and what was recorded that is like it."""

from __future__ import annotations

from oarbank_cas.explain.answers import Explanation
from oarbank_cas.explain.asking import explain

__all__ = ["Explanation", "explain"]
