"""The groups of forms."""

from collections.abc import Sequence

from pysm120.microbench import (
    forms_copy,
    forms_cvt,
    forms_launch,
    forms_math,
    forms_memory,
    forms_mma,
    forms_shared,
    forms_sync,
    forms_warp,
)
from pysm120.microbench.form import Form
from pysm120.runtime.errors import InvalidArgumentError

GROUPS: dict[str, Sequence[Form]] = {
    "mma": forms_mma.FORMS,
    "math": [*forms_math.FORMS, *forms_cvt.FORMS],
    "warp": forms_warp.FORMS,
    "shared": forms_shared.FORMS,
    "sync": forms_sync.FORMS,
    "copy": forms_copy.FORMS,
    "memory": forms_memory.FORMS,
    "launch": forms_launch.FORMS,
}


def chosen(names: Sequence[str]) -> list[Form]:
    """Return the forms of groups; without names, the forms of all groups."""
    for name in names:
        if name not in GROUPS:
            message = f"GROUP is {name!r}, not one of {', '.join(GROUPS)}"
            raise InvalidArgumentError(message)
    return [form for name, forms in GROUPS.items() if not names or name in names for form in forms]
