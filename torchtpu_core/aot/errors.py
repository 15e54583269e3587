"""What can go wrong when a program is compiled ahead of time."""

from __future__ import annotations

from typing import Any


class AotError(RuntimeError):
    """The base of all of them."""


class LibtpuMissing(AotError):
    """The compiler is not installed."""


class UnknownTopology(AotError, ValueError):
    """libtpu knows no such topology."""


class InvalidProgram(AotError):
    """libtpu refuses the program; the message is its own."""


class CompilerCrash(AotError):
    """libtpu ended the process it ran in. `log`: what it wrote before."""

    def __init__(self, message: str, log: str):
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log


class CompileTimeout(AotError, TimeoutError):
    """The compiler did not end within the time limit and was stopped."""


class DoesNotFit(AotError):
    """The program needs more memory than the chip has.

    needed, available: bytes a device, where the compiler says them; buffers: the largest ones
    (result.Buffer), largest first.
    """

    def __init__(self, message: str, needed: int | None, available: int | None, buffers: list[Any]):
        super().__init__(message)
        self.needed, self.available, self.buffers = needed, available, buffers


class WrongChip(AotError):
    """A saved executable is for another chip, or another libtpu, than the one at hand."""
