"""All forms, in families that are recorded one after the other."""

import forms_convert
import forms_float
import forms_integer
import forms_matrix
import forms_memory
import forms_tensor
import forms_tma
import forms_warp
from form import Form

FAMILIES: dict[str, tuple[Form, ...]] = {
    "integer": forms_integer.FORMS,
    "float": forms_float.FORMS,
    "half": forms_float.HALVES,
    "approximate": forms_float.APPROXIMATE,
    "convert": forms_convert.FORMS,
    "warp": forms_warp.FORMS,
    "memory": forms_memory.FORMS,
    "matrix": forms_matrix.FORMS,
    "tma": forms_tma.FORMS,
    "sparse": forms_tensor.SPARSE,
    "wmma": forms_tensor.WMMA,
}
