"""The errors that loading and launching can raise; each message says what to do next."""

from __future__ import annotations


class FlycError(Exception):
    """Base of every error that flyc raises on purpose. The text is one message for a person."""


class BundleError(FlycError):
    """The file is not a bundle that this version can read, or its bytes are damaged."""


class TrustError(FlycError):
    """A bundle lacks a signature by a trusted key, or there is no way to tell. It was not used."""


class MissError(FlycError):
    """The bundle has no such kernel, parameters or target. Nothing is ever compiled instead."""


class ArgumentError(FlycError):
    """A launch argument breaks what its specialisation was compiled for; nothing was launched."""


class PlanError(FlycError):
    """A launch plan is malformed, or evaluating it is undefined (division by zero, ...)."""


class PostLoadError(FlycError):
    """A kernel's module needs a function of the application, and none is registered."""


class CaptureError(FlycError):
    """A module would have had to be loaded while a stream is captured; it was not."""


class HipUnavailableError(FlycError):
    """No HIP library, or no device, on this machine."""


class HipError(FlycError):
    """A HIP call failed.

    `code` is the `hipError_t` number, `name` its name (HIP API reference, "Error handling"), and
    `doing` what the call was for.
    """

    def __init__(self, call: str, code: int, name: str, text: str, doing: str) -> None:
        self.call = call
        self.code = code
        self.name = name
        self.doing = doing
        super().__init__(f"{call} failed with {name} ({code}: {text}) while {doing}")
