"""The device that users open: a context that makes modules, arrays, streams and events, profiles and traces.

This is the only file of the runtime that imports a package above it: `observe`, for profiles and traces.
"""

import contextlib
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.observe import watch
from pysm120.observe.profile import Profile
from pysm120.runtime import arrays, dlpack
from pysm120.runtime.context import Context
from pysm120.runtime.errors import InvalidProgramError, VirtualDeviceWarning, require_type
from pysm120.runtime.module import Kernel, Module, builtin_kernels
from pysm120.runtime.tensor_map import TensorMap
from pysm120.runtime.untraced import untraced


class Device(Context):
    """A GPU, or the virtual SM120 that runs the same kernels on the CPU.

    Parameters
    ----------
    name : str, optional
        "cuda", "cuda:1", "virtual". Default: $PYSM120_DEVICE, else the first
        usable GPU, else "virtual".

    Raises
    ------
    NoDeviceError
        There is no such device.
    InvalidArgumentError
        The name is not one of these.

    Examples
    --------
    >>> with Device("virtual") as dev:
    ...     x = dev.array(np.ones(4, np.float32))
    ...     x.numpy()
    array([1., 1., 1., 1.], dtype=float32)

    """

    # ---- modules, memory, tensor maps ---------------------------------------

    def load(self, ptx: "str | bytes | os.PathLike[str]", *, name: str | None = None, strict: bool = False) -> Module:
        """Load a module of kernels.

        Parameters
        ----------
        ptx : str, bytes or path
            PTX text, the bytes of PTX or of a cubin, or (os.PathLike only) the
            file that holds either.
        name : str, optional
            The module's name in messages. Default: the path, else "<ptx>".
        strict : bool
            Every entry must be able to run. By default an entry that cannot run on
            the virtual device is refused when it is used, and the others work.

        Returns
        -------
        Module
            A mapping: ``dev.load(ptx)["my_kernel"]``.

        Raises
        ------
        InvalidProgramError
            The program does not load, none of its entries can run, or, with
            ``strict``, one cannot; the message says where and why, for each reason.

        """
        require_type(ptx, (str, bytes, os.PathLike), "ptx", "a str or bytes of PTX or a pathlib.Path")
        if isinstance(ptx, os.PathLike):
            name = name or os.fspath(ptx)
            ptx = Path(ptx).read_bytes()
        elif isinstance(ptx, str) and "\n" not in ptx and ptx.endswith((".ptx", ".cubin")):
            message = f"ptx is {ptx!r}, which is a path, not PTX: give pathlib.Path({ptx!r})"
            raise InvalidProgramError(message)
        image = ptx.encode() if isinstance(ptx, str) else ptx
        return Module(self, image, name or "<ptx>", strict=strict)

    def builtin_kernels(self) -> dict[str, Kernel]:
        """Return the kernels inside the library, by entry."""
        return builtin_kernels(self)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> arrays.Array:
        """Return an array in device memory whose elements are not set."""
        return arrays.empty(self, shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> arrays.Array:
        """Return an array in device memory whose bytes are 0."""
        return arrays.zeros(self, shape, dtype)

    def array(self, values: npt.ArrayLike) -> arrays.Array:
        """Return a C-contiguous copy of ``values`` in device memory."""
        return arrays.array(self, values)

    def pinned(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return an ndarray in host memory that kernels can reach too.

        It is freed when the last ndarray over it is gone. It (or any view of
        it) may be an argument of a kernel.
        """
        return arrays.pinned(self, shape, dtype)

    @untraced
    def from_dlpack(self, x: dlpack.SupportsDLPack, *, copy: bool | None = None, stream: Any = None) -> arrays.Array:
        """Return the array of another library, by DLPack.

        Parameters
        ----------
        x : object with ``__dlpack__`` and ``__dlpack_device__``
            The array. Memory of this device is shared; host memory is copied.
        copy : bool, optional
            True: always copy. False: never copy. Default: copy if necessary.
        stream : stream, optional
            The stream that will use the array.

        Raises
        ------
        InvalidArgumentError
            The array is on another device, or would have to be copied.

        """
        return arrays.from_dlpack(self, x, copy=copy, stream=stream)

    def tensor_map(
        self,
        array: arrays.Array,
        box: int | Sequence[int],
        *,
        element_strides: int | Sequence[int] | None = None,
        data_type: str | None = None,
        swizzle: str = "none",
        interleave: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "zero",
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> TensorMap:
        """Return a tensor map: how ``cp.async.bulk.tensor`` copies boxes of an array.

        It is an argument of a kernel: ``.param .align 64 .b8 map[128]``, in CUDA C++
        ``const __grid_constant__ CUtensorMap map``. All tuples are in the order of the
        array's dimensions; the coordinates in PTX go the other way, innermost first.

        Parameters
        ----------
        array : Array, 1 to 5 dimensions
            Contiguous along the last dimension; the other strides are multiples of 16 bytes.
        box : tuple of int
            Elements that a box spans along each dimension, 1 to 256. The last dimension
            of a box has a multiple of 16 bytes.
        element_strides : tuple of int, optional
            1 to 8, along each dimension: with n, a box holds every n-th element. Ignored for the last dimension.
        data_type : str, optional
            As ``CUtensorMapDataType`` calls it ("FLOAT32_FTZ", "16U4_ALIGN16B", ...).
            Default: by the array's dtype; one-byte types are "UINT8".
        swizzle : str
            "none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B" or "128B_ATOM_64B".
        interleave : str
            "none", "16B" or "32B"; the virtual device supports only "none".
        l2_promotion : str
            "none", "64B", "128B" or "256B"; a hint.
        oob_fill : str
            What a load returns for elements outside the array: "zero" or "nan".
        dims : tuple of int, optional
            Elements along each dimension, instead of the array's shape: the map of
            the driver as it is, of which only the first address is the array's.
        strides : tuple of int, optional
            With ``dims``: bytes from one element to the next along each dimension
            but the last, a multiple of 16. 0 repeats the dimension, as CuTe does.

        Raises
        ------
        InvalidArgumentError, MisalignedError
            The driver rejects the map; the message says what would be right.

        """
        return TensorMap(
            self,
            array,
            box,
            element_strides=element_strides,
            data_type=data_type,
            swizzle=swizzle,
            interleave=interleave,
            l2_promotion=l2_promotion,
            oob_fill=oob_fill,
            dims=dims,
            strides=strides,
        )

    def profile(self) -> Profile:
        """Return a profile of the kernels that run inside a with statement (virtual device).

        ``with device.profile() as p: kernel(grid, block, x)``, then ``p.lines``, ``p.opcodes``, ``p.total``. Kernels
        take about twice as long meanwhile. On a GPU: UnsupportedError.
        """
        return Profile(self)

    # ---- watching launches --------------------------------------------------

    def trace(
        self,
        *,
        cta: tuple[int, ...] | None = (0, 0, 0),
        warp: int | None = 0,
        file: str | None = None,
        lines: tuple[int, int] | None = None,
        limit: int | None = 10000,
        see: Callable[[watch.Step], object] | None = None,
        keep: bool = True,
    ) -> contextlib.AbstractContextManager[watch.Trace]:
        """Record what a warp executes, with its registers, in the launches of a ``with`` block.

        A watched launch runs on one thread, its CTAs in the seed's order. A device has one watcher at a time.

        Parameters
        ----------
        cta : tuple of up to three ints, optional
            The CTA; None for all of them.
        warp : int, optional
            The warp; None for all of them.
        file : str, optional
            Only instructions that ``#line`` markers place in this file (or in one whose path ends with it).
        lines : pair of ints, optional
            Only these lines, the last one included.
        limit : int, optional
            The launch ends after this many instructions, and ``is_cut`` is True. None: no limit.
        see : callable, optional
            Called with every step after it has been executed; the launch ends if it returns True.
        keep : bool
            False: only call ``see``.

        Returns
        -------
        context manager of watch.Trace
            The steps in order.

        Raises
        ------
        UnsupportedError
            The device is a GPU.

        Examples
        --------
        >>> with device.trace(warp=1) as steps:
        ...     kernel(grid, block, x)
        >>> steps.steps[0].writes[0].values

        """
        return watch.trace(self, cta=cta, warp=warp, file=file, lines=lines, limit=limit, see=see, keep=keep)

    def break_at(
        self,
        line: int,
        *,
        file: str | None = None,
        cta: tuple[int, ...] | None = None,
        warp: int | None = None,
        hits: int = 1,
        shared: tuple[int, int] | None = None,
    ) -> contextlib.AbstractContextManager[watch.Break]:
        """Stop at a line, in the launches of a ``with`` block, before its instruction executes.

        The launch then ends; what it has written stays.

        Parameters
        ----------
        line : int
            A line of the PTX text, or of ``file`` if ``#line`` markers name it.
        file : str, optional
            The file, or the end of its path.
        cta, warp : optional
            The CTA and the warp; by default the first one that reaches the line.
        hits : int
            Stop at the ``hits``-th time that the line is reached, counted over all selected warps.
        shared : pair of ints, optional
            Address and number of bytes of shared memory to keep. Shared memory begins at address 1024.

        Returns
        -------
        context manager of watch.Break
            ``stop`` has the registers, and the instruction at which each lane of the CTA is.

        Raises
        ------
        UnsupportedError
            The device is a GPU.

        """
        return watch.break_at(self, line, file=file, cta=cta, warp=warp, hits=hits, shared=shared)

    def changes(
        self, array: arrays.Array, offset: int, nbytes: int
    ) -> contextlib.AbstractContextManager[list[watch.Change]]:
        """Record every change of up to 64 bytes of an array, in the launches of a ``with`` block.

        Parameters
        ----------
        array : Array
            The array.
        offset, nbytes : int
            The bytes of the array to watch.

        Returns
        -------
        context manager of a list of watch.Change
            The instructions that changed these bytes, including copies that landed.

        Raises
        ------
        UnsupportedError
            The device is a GPU.

        """
        return watch.changes(self, array, offset, nbytes)


# ---- devices that the package opens implicitly ----------------------------------

_shared: dict[str | None, Device] = {}
_shared_lock = threading.RLock()  # a signal handler or a finalizer may ask for the device meanwhile


def _user_level() -> int:
    """Return the stack level, seen from the caller, of the first function that is not in this package."""
    level = 1
    frame = inspect.currentframe()
    frame = frame and frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "pysm120":
        level += 1
        frame = frame.f_back
    return level


def shared_device(name: str | None = None) -> Device:
    """Return the process-wide device of a name; None is the default device.

    It warns once that the default device is virtual, unless the environment names it.
    """
    key = name if name is not None else os.environ.get("PYSM120_DEVICE") or None
    with _shared_lock:
        device = _shared.get(key)
        is_first = device is None
        if device is None or device.closed:
            device = _shared[key] = Device(name)  # None: the library reads and names the variable
    if is_first and key is None and device.is_virtual:
        message = (
            "no usable GPU was found: this call and later ones run on the virtual SM120, on the CPU. "
            '`python -m pysm120 info` says why; device="virtual" or PYSM120_DEVICE=virtual silence this warning'
        )
        warnings.warn(message, VirtualDeviceWarning, stacklevel=_user_level())
    return device


def as_device(device: "Device | str | None") -> Device:
    """Return an argument ``device`` as a Device."""
    if isinstance(device, Device):
        device.ensure_open()
        return device
    if device is not None:
        require_type(device, str, "device", "a Device, a str or None")
    return shared_device(device)
