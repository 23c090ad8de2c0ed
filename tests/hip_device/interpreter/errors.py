"""What can go wrong while a kernel is interpreted."""

from __future__ import annotations


class InterpreterError(Exception):
    """A kernel could not be run to its end. The message names the kernel and the instruction."""


class NotModelledError(InterpreterError):
    """The kernel needs something that the interpreter does not implement; it never guesses."""


class MemoryFaultError(InterpreterError):
    """An access outside every allocation, or outside the workgroup's LDS or the lane's scratch."""


class RaceError(InterpreterError):
    """Two waves of a workgroup touch the same LDS bytes with no barrier between."""


class HangError(InterpreterError):
    """No wave can go on (a barrier that not all reach), or the step limit was exceeded."""
