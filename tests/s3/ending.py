"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent():
    """What a child calls before it becomes its program, so that the kernel kills it as soon as its parent is gone.

    For `preexec_fn`. It holds for the thread that starts the child: let that be the main one. Linux alone can do it;
    elsewhere None.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask():
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) or os.getppid() != parent:
            os._exit(127)  # it went before it could be asked

    return ask
