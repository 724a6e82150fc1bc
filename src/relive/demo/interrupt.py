# SPDX-License-Identifier: Apache-2.0
"""Ctrl+C as a question that a loop asks, so that it stops between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupt", "StopRequested"]


class StopRequested(Exception):
    """Somebody asked the run to stop; everything is between two steps."""


class Interrupt:
    """Remembers Ctrl+C (SIGINT) or SIGTERM for as long as it is entered.

    The first is remembered; a second Ctrl+C raises KeyboardInterrupt, for whoever cannot wait.
    Outside the main thread, where Python allows no signal handlers, only `request` sets it.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._is_requested = False

    def request(self) -> None:
        """Ask the loop to stop."""
        self._is_requested = True

    def check(self) -> None:
        """Stop here if that was asked for.

        Raises:
            StopRequested: It was.
        """
        if self._is_requested:
            raise StopRequested

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.request()
