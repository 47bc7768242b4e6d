"""Exceptions: one class for every status of the C library."""


class Error(Exception):
    """The base class of all errors of this package.

    Parameters
    ----------
    message : str
        One sentence: the argument, its value and what would be right.
    status : int
        Status of the C library (``enum`` of ``sm120.h``).

    """

    status: int = 10

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status


class VirtualDeviceWarning(UserWarning):
    """There is no usable GPU, and a call that names no device runs on the virtual SM120, which is slow."""


class InvalidArgumentError(Error, ValueError):
    """A value that is never right."""

    status = 1


class UnsupportedError(Error, NotImplementedError):
    """A value that is right in general but not supported here."""

    status = 2


class NoDeviceError(Error, RuntimeError):
    """No driver, or no such device."""

    status = 3


class OutOfMemoryError(Error, MemoryError):
    """Out of device or host memory."""

    status = 4


class MisalignedError(Error, ValueError):
    """A pointer or a stride that a kernel cannot load from."""

    status = 5


class WorkspaceTooSmallError(Error, ValueError):
    """A workspace smaller than the operation needs."""

    status = 6


class InvalidProgramError(Error, ValueError):
    """PTX or a cubin that does not load; the message holds the log."""

    status = 7


class FaultError(Error, RuntimeError):
    """A kernel did something wrong while it ran.

    Attributes
    ----------
    source : str or None
        The PTX text of the kernel's module, if it is known.

    """

    status = 8
    source: str | None = None


class DriverError(Error, RuntimeError):
    """Any other error of the CUDA driver.

    Attributes
    ----------
    driver_error : int
        The driver's own code (``CUresult``).

    """

    status = 9
    driver_error: int = 0


class InternalError(Error, RuntimeError):
    """A defect of the library."""

    status = 10


class ClosedError(Error, ValueError):
    """Use of a closed device or of a freed object."""

    status = 1


BY_STATUS: dict[int, type[Error]] = {
    kind.status: kind
    for kind in (
        InvalidArgumentError,
        UnsupportedError,
        NoDeviceError,
        OutOfMemoryError,
        MisalignedError,
        WorkspaceTooSmallError,
        InvalidProgramError,
        FaultError,
        DriverError,
        InternalError,
    )
}


def require_type(value: object, kinds: type | tuple[type, ...], name: str, wanted: str) -> None:
    """Raise TypeError if an argument is not an instance of one of the types."""
    if not isinstance(value, kinds):
        message = f"{name} is a {type(value).__name__}, not {wanted}"
        raise TypeError(message)
