"""Calls of operations of the C library.

An `Operation` is made once, from its C function and a table of its arrays. A call of it takes ndarrays,
Arrays or arrays of other libraries. It checks that shapes and dtypes fit each other, makes the results that
are not given, fills the C struct, brings a workspace and launches. C checks values, strides and addresses.

A plan holds everything that depends only on shapes, strides, dtypes and options. Plans are kept, so a second
call of the same form only fills in addresses.
"""

import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pysm120.ops import foreign, operands
from pysm120.ops.plan import LETTERS, Fill, Form, New, Plan, Planner, Slot, fill_members, key
from pysm120.ops.table import F32, I32, Output, Row
from pysm120.runtime.arrays import Allocation, Array, allocate
from pysm120.runtime.device import Device
from pysm120.runtime.dlpack import SupportsDLPack
from pysm120.runtime.errors import Error, FaultError, InvalidArgumentError
from pysm120.runtime.ffi import cast, check, check_running, ffi, lib, new, types

_ALIGNMENT = 16  # alignment of addresses; kernels can use such arrays in place

# A result has the kind of the first input.
AnyArray = TypeVar("AnyArray", npt.NDArray[Any], Array, SupportsDLPack)


class Operation:
    """An operation of the C library.

    Parameters
    ----------
    function : str
        Its C function. The struct of its arguments has this name with ``_args``.
    rows : sequence of Input and Output
        Its arrays; see `table`.
    order : str
        The order of batch, heads, rows and columns in arrays whose strides the struct holds.
    fill : callable, optional
        ``fill(args, given, options)`` writes the options to the C struct and returns an object that must live as long
        as the struct. Default: `options` is a named tuple of members.
        If `options` has ``sizes``, tuples of a dimension, its size and the array that it comes from, rows may use these
        dimensions before an array tells them. If it has ``rules``, these are a named tuple of more options.
    on_host : callable, optional
        ``on_host(given, options)`` checks the values of ndarrays and returns the options, completed from these values.

    """

    def __init__(
        self,
        function: str,
        rows: Sequence[Row],
        *,
        order: str = LETTERS,
        fill: Fill = fill_members,
        on_host: Callable[[dict[str, npt.NDArray[Any]], Any], Any] | None = None,
    ) -> None:
        self._function = getattr(lib, function)
        self._pointer, self._words = types[f"{function}_args *"], types["uint64_t *"]
        self._ask = getattr(lib, f"{function}_workspace", None)  # None: the operation never needs a workspace
        self._planner, self._on_host = Planner(f"{function}_args", rows, order, fill), on_host
        self._plans = self._planner.known
        self._inputs, self._outputs = self._planner.inputs, self._planner.outputs
        self._inputs_of, self._outputs_of = _getter(self._inputs), _getter(self._outputs)
        names = {row.name for row in rows}
        self._renamed = [(row.member, row.name) for row in rows if row.member and row.member not in names]

    def __call__(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        options: Any = (),
        *,
        device: Device | str | None = None,
        stream: Any = None,
        workspace: Array | Callable[[int], Array] | None = None,
    ) -> list[Any]:
        """Compute the operation.

        Parameters
        ----------
        inputs : mapping
            Every input by name, None where an optional one is not given.
        outputs : mapping
            Every result by name: the array for it, a New, or None if it is not wanted.
        options
            The argument of `fill`; () for an operation without options.
        device, stream, workspace
            As in `attention`. The workspace may be a function that makes an array of a number of bytes.

        Returns
        -------
        list
            The results: given arrays as they are, new ones of the kind of the first input; None for results that are
            not wanted.

        """
        given, results = self._inputs_of(inputs), self._outputs_of(outputs)
        try:
            plan = self._plans.get(key(given, results, options)) if device is None else None
        except (AttributeError, TypeError):  # not all are Arrays, or an argument is wrong
            plan = None
        if plan is None:
            return self._from_anywhere(list(given), list(results), options, device, stream, workspace)
        return self._launch(plan, given[0].device, given, results, stream, workspace)

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return [row.name for row in self._inputs]

    def forms(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], options: Any = ()) -> list[Any]:
        """Return the forms of the results of a call without computing it, after the checks of a call.

        Inputs are `Form`; optional ones may be left out. Values of arrays are not checked.
        """
        return list(self.plan(inputs, outputs, options).outputs)

    def plan(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], options: Any = ()) -> Plan:
        """Return the plan of such a call."""
        given = [inputs.get(row.name) for row in self._inputs]
        return self._planner.plan(given, self._outputs_of(outputs), options)

    def _from_anywhere(
        self, given: list[Any], results: list[Any], options: Any, device: Any, stream: Any, workspace: Any
    ) -> list[Any]:
        """Compute the operation on arrays of any kind; new results get the kind of the first input."""
        library, wanted = foreign.library_of(given[0]), results
        ours = [x for x in results if type(x) is not New]
        if foreign.are_on_host((*given, *ours)):
            given = [foreign.as_ndarray(x, row.name) for x, row in zip(given, self._inputs, strict=True)]
            results = [foreign.as_result(x, row.name) for x, row in zip(results, self._outputs, strict=True)]
        if isinstance(given[0], np.ndarray):
            given = [_beside_ndarrays(x, slot) for x, slot in zip(given, self._planner.slots, strict=False)]
        made = self._from_one_kind(given, results, options, device, stream, workspace)
        return [
            foreign.handed_to(library, x, row.name) if type(given_one) is New else given_one
            for x, given_one, row in zip(made, wanted, self._outputs, strict=True)
        ]

    def _from_one_kind(
        self, given: list[Any], results: list[Any], options: Any, device: Any, stream: Any, workspace: Any
    ) -> list[Any]:
        """Compute the operation on ndarrays, or on Arrays and other libraries' arrays on a device."""
        pairs = list(zip(given, self._inputs, strict=True))
        named = {row.name: x for x, row in pairs if x is not None or not row.optional}
        on_host = operands.is_host(named)
        place = operands.device_of(named, device)
        if on_host:
            return self._from_host(place, given, results, options, stream, workspace)
        faces: list[Any] = [None if x is None else foreign.face_of(place, x, row.name, stream) for x, row in pairs]
        there = [
            foreign.result_face_of(place, x, row.name, stream) for x, row in zip(results, self._outputs, strict=True)
        ]
        plan = self._planner.plan(faces, there, options)
        if plan.scattered:
            faces = [x.copy(stream=stream) if i in plan.scattered else x for i, x in enumerate(faces)]
            plan = self._planner.plan(faces, there, options)
        made = self._launch(plan, place, faces, there, stream, workspace)
        foreign.wait_for(place, stream, *given, *results)
        return made

    # ---- on a device ------------------------------------------------------------

    def _launch(
        self, plan: Plan, device: Any, given: Sequence[Any], results: Sequence[Any], stream: Any, workspace: Any
    ) -> list[Any]:
        """Start the operation on Arrays that fit a plan."""
        queue = ffi.NULL if stream is None else device.stream_handle(stream)
        if workspace is not None and not callable(workspace):
            _check_workspace(workspace, device)
        args = ffi.new(self._pointer, plan.args[0])
        words = ffi.cast(self._words, args)
        number = 0 if stream is None else int(cast("uintptr_t", queue))
        made, bits = list(results), 0
        for index, word in plan.reads:
            x = given[index]
            if x.device is not device:
                _check_place(x, self._inputs[index].name, device, "the others")
            words[word] = address = x.address
            bits |= address
            x.owner.stream = number
        for index, word in plan.writes:
            x = results[index]
            if type(x) is New:
                x = made[index] = _new(device, self._outputs[index], plan.outputs[index], queue)
            elif x.device is not device or x.readonly:
                _check_writable(x, self._outputs[index].name, device)
            words[word] = address = x.address
            bits |= address
            x.owner.stream = number
        if stream is not None:
            args.stream = queue
        try:
            self._run(device, plan, args, queue, workspace, is_aligned=bits % _ALIGNMENT == 0)
        except Error as error:
            self._use_names(error)
            raise
        return made

    def _run(self, device: Device, plan: Plan, args: Any, queue: Any, workspace: Any, *, is_aligned: bool) -> None:
        """Make the call, with a workspace if it needs one."""
        handle, function, is_virtual = device.handle, self._function, device.is_virtual
        pointer = handle.pointer
        ask = self._ask
        if ask is None:
            check_running(pointer, lambda: function(pointer, args), is_virtual=is_virtual)
            return
        if not (is_aligned and plan.needs_nothing == handle.number):
            size = new("size_t *")
            check(ask(pointer, args, size))
            if size[0] != 0:
                with _workspace(device, queue, size[0], workspace) as (address, nbytes):
                    check_running(pointer, lambda: function(pointer, args, address, nbytes), is_virtual=is_virtual)
                return
        check_running(pointer, lambda: function(pointer, args, 0, 0), is_virtual=is_virtual)
        if is_aligned:  # splits depend on the device
            plan.needs_nothing = handle.number

    def _use_names(self, error: Error) -> None:
        """Replace C's names of arguments in an error by Python's."""
        if isinstance(error, FaultError):
            return
        text = str(error).replace("workspace_bytes", "workspace.nbytes")
        for member, name in self._renamed:
            text = re.sub(rf"(?<![\w.]){member}(?!\w)", name, text)
        error.args = (text,)

    # ---- on the host ------------------------------------------------------------

    def _from_host(
        self, device: Device, given: list[Any], results: list[Any], options: Any, stream: Any, workspace: Any
    ) -> list[Any]:
        """Compute ndarrays: copy in, launch, copy out."""
        for x, row in zip(results, self._outputs, strict=True):
            if x is not None and type(x) is not New:
                operands.check_result(x, row.name)
        # Errors of forms and values are raised before anything is copied.
        forms = [None if x is None else Form.like(x.shape, x.dtype) for x in given]
        self._planner.plan(
            forms, [Form.like(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in results], options
        )
        operands.check_apart({row.name: x for x, row in zip(results, self._outputs, strict=True)})
        if self._on_host is not None:
            pairs = zip(given, self._inputs, strict=True)
            options = self._on_host({row.name: x for x, row in pairs if x is not None}, options)
        number = int(cast("uintptr_t", device.stream_handle(stream)))
        staged: list[Array] = []

        def put(x: npt.NDArray[Any]) -> Array:
            staged.append(device.empty(x.shape, x.dtype))
            return staged[-1].copy_from(x, stream=number)

        with operands.temporary(staged):
            faces = [None if x is None else put(x) for x in given]
            there = [
                x if not isinstance(x, np.ndarray) else put(x) if row.reads or row.fill is not None else New(x.dtype)
                for x, row in zip(results, self._outputs, strict=True)
            ]
            plan = self._planner.plan(faces, there, options)
            made = self._launch(plan, device, faces, there, stream, workspace)
            staged += [x for x in made if x is not None and not any(x is y for y in staged)]
            computed = [None if x is None else x.numpy(stream=number) for x in made]
        for index, x in enumerate(results):
            if isinstance(x, np.ndarray):
                x[...] = computed[index]
                computed[index] = x
        return computed


def _beside_ndarrays(x: Any, slot: Slot) -> Any:
    """Return numbers as an ndarray if a row has only one dtype; other values are returned unchanged and fail later."""
    if (
        x is None
        or isinstance(x, Array)
        or foreign.is_foreign(x)
        or slot.is_struct
        or slot.row.dtypes not in (F32, I32)
    ):
        return x
    return operands.narrowed(x, slot.row.name, slot.row.dtypes[0])


def _getter(rows: Sequence[Row]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function that takes the arrays of rows from a mapping."""
    if len(rows) == 1:
        return lambda arrays: (arrays[rows[0].name],)
    return operator.itemgetter(*[row.name for row in rows])


def _new(device: Device, row: Output, form: Form, queue: Any) -> Array:
    """Return a new result; if the operation writes only a part of it, the rest is filled with a value."""
    new = device.empty(form.shape, form.dtype)
    if row.fill == 0:
        check(lib.sm120_fill(device.handle.pointer, new.address, 0, new.nbytes, queue))
    elif row.fill is not None:
        new.copy_from(np.full(new.shape, row.fill, new.dtype), stream=int(cast("uintptr_t", queue)))
    return new


# ---- devices and workspaces -----------------------------------------------------


def _check_place(x: Array, name: str, device: Device, others: str) -> None:
    """Raise if kernels of a device cannot use an array."""
    _ = x.address
    if not x.device.shares_memory_with(device):
        message = f"{name} is on {device.name_of(x.device)}, not on {device} like {others}"
        raise InvalidArgumentError(message)


def _check_writable(x: Array, name: str, device: Device) -> None:
    """Raise if kernels of a device cannot write to an array."""
    _check_place(x, name, device, "the inputs")
    x.ensure_writable(name)


def _check_workspace(workspace: Any, device: Device) -> None:
    """Raise if a workspace is not contiguous memory of the device; C checks address and size."""
    if not isinstance(workspace, Array):
        message = f"workspace is a {type(workspace).__name__}, not an Array like the inputs"
        raise TypeError(message)
    _check_writable(workspace, "workspace", device)
    if not workspace.is_contiguous:
        message = f"workspace has strides {workspace.strides}, but must be contiguous"
        raise InvalidArgumentError(message)
    if workspace.nbytes == 0:
        message = "workspace has 0 bytes; leave it out, or give the size that the operation needs"
        raise InvalidArgumentError(message)


@contextlib.contextmanager
def _workspace(
    device: Device, queue: Any, size: int, given: Array | Callable[[int], Array] | None
) -> Iterator[tuple[int, int]]:
    """Hold address and size of a workspace: the given one, a new one, or the one that is kept for the stream.

    An operation is several launches, so only one operation at a time may use the workspace.
    """
    number = int(cast("uintptr_t", queue))
    if callable(given):
        given = given(size)
    if given is not None:
        yield given.address, given.nbytes
        given.owner.stream = number
        return
    with device.workspace_lock:
        held = device.workspaces.get(number)
        if not isinstance(held, Allocation) or held.closed or held.nbytes < size:
            device.workspaces.pop(number, None)
            device.workspaces[number] = held = allocate(device, size)
        yield held.address, held.nbytes
