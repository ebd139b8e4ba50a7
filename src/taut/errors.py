"""Every error that a user of taut can cause, in one tree.

TautError
├── UsageError                bad argument or option (exit 2, HTTP 400)
├── ModelError                the model cannot be used (exit 3)
│   ├── ModelNotFoundError    no such folder, file, alias or hub id
│   ├── ModelFormatError      a file is damaged or malformed; names file, offset, field
│   │   └── Float16RangeError a weight is beyond float16, in which it should be kept
│   └── UnsupportedModelError sound, but an architecture or feature that taut does not run
├── MemoryBudgetError         does not fit the memory budget (exit 5)
├── PortInUseError            the address is taken (exit 4)
├── HardwareError             the forced ISA or thread count cannot run here (exit 2)
├── RequestError              one request is wrong; names the parameter (HTTP 4xx)
│   └── ContextLengthError    the prompt does not fit the context (HTTP 400)
├── OverloadedError           no room for the request now (HTTP 503 or 429)
├── CompressionError          an artefact cannot be made or kept (exit 6)
│   └── VerificationError     an artefact is not what its receipt says (exit 6)
├── NumericalError            a non-finite result; only that request fails (HTTP 500)
└── EngineStoppedError        the engine is shutting down or has failed (HTTP 503)

A message says what was given, what is accepted and what to do.
"""

from __future__ import annotations


class TautError(Exception):
    """Base of every error raised on purpose. `exit_code` is the command line's, `code` the API's."""

    exit_code = 1
    code = "internal_error"


class UsageError(TautError):
    exit_code = 2
    code = "invalid_value"


class ModelError(TautError):
    exit_code = 3
    code = "model_error"


class ModelNotFoundError(ModelError):
    code = "model_not_found"


class ModelFormatError(ModelError):
    """A model file is malformed. `file` is its name, `field` what is wrong, `offset` the byte position when known."""

    code = "model_format"

    def __init__(self, message: str, *, file: str = "", field: str = "", offset: int | None = None) -> None:
        where = ", ".join(
            part for part in (file, f"field {field}" if field else "", "" if offset is None else f"byte {offset}") if part
        )
        super().__init__(f"{where}: {message}" if where else message)
        self.file, self.field, self.offset = file, field, offset


class Float16RangeError(ModelFormatError):
    pass


class UnsupportedModelError(ModelError):
    code = "unsupported_model"


class MemoryBudgetError(TautError):
    exit_code = 5
    code = "out_of_memory_budget"


class PortInUseError(TautError):
    exit_code = 4
    code = "port_in_use"


class HardwareError(TautError):
    exit_code = 2
    code = "hardware"


class RequestError(TautError):
    """One request is wrong. `param` names the field, `status` is the HTTP status."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class ContextLengthError(RequestError):
    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class OverloadedError(TautError):
    """No room now. `retry_after_s` is the predicted time until there is."""

    code = "server_overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CompressionError(TautError):
    exit_code = 6
    code = "compression_error"


class VerificationError(CompressionError):
    code = "verification_error"


class NumericalError(TautError):
    code = "numerical_error"


class EngineStoppedError(TautError):
    code = "engine_stopped"
