"""Plans of calls: checked forms of arrays, and the C struct filled in except for addresses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pysm120.ops import operands, table
from pysm120.ops.options import MOST, dtype_name
from pysm120.ops.table import BF16, FP8, U8, Dtype, Input, Output, Row, Sizes
from pysm120.runtime.arrays import Array, dtype_of, form_of
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import new_struct, types
from pysm120.runtime.shapes import Shape, contiguous_strides, is_contiguous

_MOST_PLANS = 1024
_WORD = 8
_ROLES = ("batch_stride", "head_stride", "row_stride", "column_stride")
LETTERS = "BHSD"


class New(NamedTuple):
    """A result that the operation is to make, of the row's dtype or of another one."""

    dtype: Dtype | None = None

    @property
    def form(self) -> "New":
        """What it is in the key of a plan."""
        return self


NEW = New()


def result(out: Any, out_dtype: Any = None) -> Any:
    """Return the result for `out` and `out_dtype`: the given array, or a New."""
    given = None if out_dtype is None else dtype_of(out_dtype, "out_dtype")
    if out is None:
        return NEW if given is None else New(given)
    if given is None and isinstance(out, Array):
        return out
    dtype = dtype_name(out, "out")
    if given is not None and given.name != dtype:
        message = f"out_dtype is {given}, but out has dtype {dtype}"
        raise InvalidArgumentError(message)
    return out


class Form(NamedTuple):
    """The form of an array that is not on a device yet."""

    shape: Shape
    strides: Shape
    dtype: Dtype

    @property
    def form(self) -> int:
        """The number of its form, as in Array."""
        return form_of(self.shape, self.strides, self.dtype)

    @classmethod
    def like(cls, shape: Shape, dtype: Dtype) -> "Form":
        """Return the form of a contiguous array."""
        return cls(shape, contiguous_strides(shape), dtype)


Given = Mapping[str, Any]  # arrays of a call by name; each has shape, strides and dtype
Fill = Callable[[Any, Given, Any], Any]  # fills a struct from options


def fill_members(args: Any, given: Given, options: Any) -> None:
    """Write options whose names are members of the C struct; () for an operation without options."""
    del given
    members = options._asdict() if options else {}
    for name, value in members.items():
        try:
            setattr(args, name, value)
        except (OverflowError, TypeError) as error:  # noqa: PERF203 - once for a form
            kind = TypeError if isinstance(error, TypeError) else InvalidArgumentError
            message = f"{name} is {value!r}: {error}"
            raise kind(message) from None


class Plan:
    """A checked form of a call."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.reads: list[tuple[int, int]] = []  # given inputs: index, word of args
        self.writes: list[tuple[int, int]] = []  # wanted results: index, word of args
        self.outputs: list[Any] = []  # the forms of results; None for those that are not wanted
        self.kept: Any = None  # objects that args point to
        self.scattered: list[int] = []  # inputs to copy first, because three strides cannot describe them
        self.needs_nothing = 0  # the number of a device on which it needs no workspace, if addresses are aligned


class Slot:
    """Where and how an array is written to the C struct."""

    def __init__(self, row: Row, struct: Any, order: str) -> None:
        field = dict(struct.fields)[row.field]
        self.row, self.is_struct = row, field.type.kind == "struct"
        members = dict(field.type.fields) if self.is_struct else {}
        self.word = (field.offset + (members["address"].offset if members else 0)) // _WORD
        self.alternatives = [table.dimensions(x) for x in row.shape.split("|")]
        self.tail = len(self.alternatives[0]) if row.shape.startswith("...") else 0  # dimensions behind "..."
        letters = LETTERS if self.tail else LETTERS[-len(self.alternatives[0]) :]
        self._is_dense = "column_stride" not in members
        # For each dimension in C's order, its axis in the array. A mask is always in C's order.
        axes = list(range(len(letters)))
        is_ordered = isinstance(row, Input) and row.is_ordered
        if self.is_struct and self._is_dense and not self.tail and not is_ordered:
            kept = [x for x in order if x in letters]
            axes = [kept.index(x) for x in letters]
            self.alternatives = [tuple(x[letters.index(letter)] for letter in kept) for x in self.alternatives]
        self._strides = [x for x in zip(_ROLES[-len(letters) :], axes, strict=True) if x[0] in members]

    def take(self, args: Any, x: Any, sizes: Sizes, leading: table.Leading | None) -> None:
        """Check shape and strides of an array, and write its dtype and strides."""
        row, shape, strides = self.row, x.shape, x.strides
        front = len(leading.shape) if self.tail and leading else 0
        if isinstance(row, Input | Output) and row.broadcasts:
            wanted = self.alternatives[0]
            sizes.broadcast(row.name, shape, wanted)
            lacking = len(wanted) - len(shape)
            shape, strides = (1,) * lacking + shape, (0,) * lacking + strides
        else:
            fitting = [x for x in self.alternatives if len(x) == len(shape) - front]
            if not fitting:
                message = f"{row.name} has shape {shape}, not {' or '.join(map(table.words_of, self.alternatives))}"
                raise InvalidArgumentError(message)
            sizes.take(row.name, shape, fitting[0], front)
        if not self.is_struct:
            if not is_contiguous(shape, strides):
                message = f"{row.name} has strides {strides}, but must be contiguous"
                raise InvalidArgumentError(message)
            return
        if self.tail and leading:
            shape, strides = leading.view(shape, strides)
        tensor = getattr(args, row.field)
        tensor.dtype = table.CODES[x.dtype]
        for member, axis in self._strides:
            setattr(tensor, member, strides[axis] if shape[axis] > 1 else 0)
        if self._is_dense and shape[-1] > 1 and strides[-1] != 1:
            step = f"stride {strides[-1]} along its last dimension"
            message = f"{row.name} has {step}, but the elements of a row must be contiguous"
            raise InvalidArgumentError(message)


def _size(name: str, size: int, source: str) -> int:
    """Return a size that the options tell, after checking it."""
    if not 1 <= size <= MOST:
        of = "" if source in {name, "the call"} else f" of {source}"
        message = f"{name}{of} is {size}; it must be {'at least 1' if size < 1 else 'below 2**63'}"
        raise InvalidArgumentError(message)
    return size


class Planner:
    """Checks the calls of one operation and keeps their plans. A given array is an Array or a Form."""

    def __init__(self, struct: str, rows: Sequence[Row], order: str, fill: Fill) -> None:
        kind = types[struct]
        self._struct, self._fill = struct, fill
        self.inputs = [row for row in rows if isinstance(row, Input)]
        self.outputs = [row for row in rows if isinstance(row, Output)]
        self.slots = [Slot(row, kind, order) for row in (*self.inputs, *self.outputs)]
        self._sizes = {name for name, x in kind.fields if x.type.kind == "primitive" and x.type.cname == "int64_t"}
        tails = {slot.tail for slot in self.slots if slot.tail}
        if len(tails) > 1:
            message = f'rows of {struct} have {tails} dimensions behind "...": each row must have the same number'
            raise ValueError(message)
        self._tail = max(tails, default=0)
        self.known: dict[tuple[Any, ...], Plan] = {}

    def plan(self, given: Sequence[Any], results: Sequence[Any], options: Any) -> Plan:
        """Return the plan of a call: a kept one, or a new one after checks."""
        for x, row in zip(results, self.outputs, strict=True):
            if x is not None and not isinstance(x, New | Array | Form):
                message = f"{row.name} is a {type(x).__name__}, not an Array like the inputs"
                raise TypeError(message)
        try:
            found = key(given, results, options)
            plan = self.known.get(found)
        except TypeError:  # an option that cannot be hashed is wrong; the checks below report it
            return self._check(given, results, options)
        if plan is None:
            plan = self._check(given, results, options)
            if len(self.known) >= _MOST_PLANS:
                self.known.clear()
            if not plan.scattered:
                self.known[found] = plan
        return plan

    def _check(self, given: Sequence[Any], results: Sequence[Any], options: Any) -> Plan:
        """Check a form and fill in the struct except for addresses."""
        plan = Plan(new_struct(self._struct))
        named = self._check_inputs(given)
        sizes, leading = Sizes(), None
        for name, size, source in getattr(options, "sizes", ()):
            sizes.give(name, _size(name, size, source), source)
        if self._tail:
            leading = self._find_leading(plan, given, results)
            if leading is None:
                return plan
            for name, (extent, _) in zip(table.LEADING, leading.groups, strict=False):
                sizes.give(name, extent, "...")
        for index, slot in enumerate(self.slots):
            is_input = index < len(given)
            x = given[index] if is_input else results[index - len(given)]
            if not is_input:
                x = self._form_of(x, self.outputs[index - len(given)], slot, named, sizes, leading)
                plan.outputs.append(x)
            if x is not None:
                slot.take(plan.args, x, sizes, leading)
                (plan.reads if is_input else plan.writes).append((index if is_input else index - len(given), slot.word))
        for name, size in sizes.known.items():
            if name in self._sizes:
                setattr(plan.args, name, size)
        plan.kept = self._fill(plan.args, named, options)
        return plan

    @staticmethod
    def _form_of(x: Any, row: Output, slot: Slot, named: Given, sizes: Sizes, leading: table.Leading | None) -> Any:
        """Return a result that is given, or the form of a new one."""
        if x is None:
            return None
        dtype, is_new = x.dtype, type(x) is New
        if dtype is None:
            dtype = named[row.like].dtype if row.like else row.dtypes[0]
            dtype = BF16 if row.converts and dtype in (*FP8, *U8) else dtype
        else:
            name = f"{row.name}_dtype" if is_new else row.name
            row.check_dtype(dtype, name)
            if row.like and not row.converts:
                row.check_same(dtype, row.like, named[row.like].dtype, name)
        if not is_new:
            return x
        if row.shape_of:
            return Form.like(named[row.shape_of].shape, dtype)
        front = leading.shape if slot.tail and leading else ()
        return Form.like(front + sizes.shape(slot.alternatives[0]), dtype)

    def _check_inputs(self, given: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs that are given, by name."""
        named: dict[str, Any] = {}
        for x, row in zip(given, self.inputs, strict=True):
            if x is None and row.optional:
                continue
            if x is None:
                operands.is_host({row.name: x})  # refuses it
            row.check_dtype(x.dtype)
            if row.like and not {x.dtype, named[row.like].dtype} <= set(row.alike):
                row.check_same(x.dtype, row.like, named[row.like].dtype)
            named[row.name] = x
        return named

    def _find_leading(self, plan: Plan, given: Sequence[Any], results: Sequence[Any]) -> table.Leading | None:
        """Return the dimensions of "..."; None, and the inputs to copy in the plan, if strides cannot describe them."""
        found: list[tuple[int, Any]] = []  # the arrays that are not contiguous, and their index
        shape: Shape | None = None
        for index, (x, slot) in enumerate(zip((*given, *results), self.slots, strict=True)):
            if x is None or type(x) is New or not slot.tail:
                continue
            front = len(x.shape) - self._tail
            words = table.words_of(slot.alternatives[0], dots=True)
            if front < 0 or (shape is not None and x.shape[:front] != shape):
                known = "" if shape is None else f", where ... is {shape}"
                message = f"{slot.row.name} has shape {x.shape}, not {words}{known}"
                raise InvalidArgumentError(message)
            if 0 in x.shape:
                message = f"{slot.row.name} has shape {x.shape}: {words} must be at least 1"
                raise InvalidArgumentError(message)
            shape = x.shape[:front]
            if not is_contiguous(x.shape, x.strides):
                found.append((index, x))
        most = len(LETTERS) - self._tail
        leading = table.Leading.of(shape or (), [x.strides for _, x in found], most)
        plan.scattered = [] if leading else [index for index, _ in found if index < len(given)]
        if leading is None and not plan.scattered:
            name = self.slots[found[0][0]].row.name
            message = f"{name} has strides {found[0][1].strides}; the dimensions of ... must merge to at most {most}"
            raise InvalidArgumentError(message)
        return leading


def key(given: Sequence[Any], results: Sequence[Any], options: Any) -> tuple[Any, ...]:
    """Return the key of a plan: calls with equal keys differ only in addresses.

    The key has the types of options and of their ``rules``: True equals 1, but only one of the two may be right.
    """
    arrays = [x if x is None else x.form for x in (*given, *results)]
    return (options, *map(type, options), *map(type, getattr(options, "rules", ())), *arrays)
