"""Classes of machine instructions: the chip files give a timing for each class."""

import re

from pysm120.machine_code.sass import Instruction

# The first match counts. An instruction without a match has the class "alu".
_RULES = (
    (r"[HQO]MMA\.SF\.SP", "mma_sf_sparse"),
    (r"[HQIO]MMA\.SP", "mma_sparse"),
    (r"HMMA\.16816\.F32", "hmma_16816_f32"),
    (r"HMMA\.16816\.F16", "hmma_16816_f16"),
    (r"HMMA\.1688\.F32\.TF32", "hmma_1688_tf32"),
    (r"HMMA\.1684", "hmma_1684_tf32"),
    (r"HMMA\.1688", "hmma_1688"),
    (r"HMMA", "hmma_16816_f32"),
    (r"OMMA", "omma_16864"),
    (r"QMMA\.SF", "qmma_sf_16832"),
    (r"QMMA\.16832\.F16", "qmma_16832_f16"),
    (r"QMMA", "qmma_16832_f32"),
    (r"IMMA\.(?:16816|8816)", "imma_16816"),
    (r"IMMA", "imma_16832"),
    (r"DMMA", "dmma"),
    (r"MUFU", "mufu"),
    (r"F2FP|I2FP", "pack"),
    (r"U?I2F|U?F2I|I2I|F2F|FRND|POPC|FLO|BREV", "convert"),
    (r"IMAD\.WIDE|IMAD\.HI", "imad_wide"),
    (r"IMAD|IDP|VIMAD", "imad"),
    (r"FFMA|FMUL|FADD|FFMA2|FMUL2|FADD2", "fma"),
    (r"HFMA2|HADD2|HMUL2|HMNMX2|HSET|BFMA", "half"),
    (r"D(FMA|MUL|ADD|SETP)", "double"),
    (r"LDSM|MOVM", "ldmatrix"),
    (r"STSM", "stmatrix"),
    (r"LDS", "load_shared"),
    (r"STS", "store_shared"),
    (r"ATOMS", "atomic_shared"),
    (r"SHFL", "shuffle"),
    (r"LDGSTS", "copy_async"),
    (r"LDGDEPBAR", "fence"),
    (r"LDG|LD\.|LD$", "load_global"),
    (r"LDL", "load_local"),
    (r"REDG?\.", "add_global"),
    (r"STG|ST\.|ST$|ATOM", "store_global"),
    (r"STL", "store_local"),
    (r"UTMA|UBLK|UTMACMDFLUSH", "copy"),
    (r"SYNCS\.PHASECHK", "try_wait"),
    (r"SYNCS|ARRIVES", "arrive"),
    (r"BAR|WARPSYNC\.COLLECTIVE", "barrier"),
    (r"MEMBAR|FENCE|ERRBAR|CCTL|DEPBAR", "fence"),
    (r"S2R|S2UR|CS2R|LDC|LDCU|ULDC|B2R|LEPC", "constant"),
    (r"R2UR", "to_uniform"),
    (r"VOTE|REDUX|CREDUX|MATCH|ELECT", "vote"),
    (r"BRA|BRX|JMP|EXIT|RET|CALL|BSSY|BSYNC|BREAK|WARPSYNC|YIELD|NANOSLEEP|ENDCOLLECTIVE|NOP|BMOV|ACQBULK", "branch"),
    (r"U[A-Z]", "uniform"),
    (r"MOV|PRMT\.MOV", "move"),
)
_COMPILED = tuple((re.compile(pattern), name) for pattern, name in _RULES)

_MOVES = {"MOV", "UMOV", "R2UR", "CS2R", "S2R", "S2UR", "LDC", "LDCU", "ULDC", "R2P", "P2R", "B2R", "MOVM"}
_BITS = re.compile(r"\.(128|64)\b")
_WIDTH = re.compile(r"\.(256|128|64|[US]8|[US]16)\b")
_NUMBERS = re.compile(r"\.(?:[FUS]|BF)(16|32|64)(?:x(\d))?\b")  # of an addition: their bits, and how many
_MATRICES = re.compile(r"\.([24])$")

_LANES = 32
_PASS_BYTES = 128

_found: dict[str, str] = {}


def class_of(opcode: str) -> str:
    """Return the class of an opcode."""
    name = _found.get(opcode)
    if name is None:
        name = next((name for pattern, name in _COMPILED if pattern.match(opcode)), "alu")
        _found[opcode] = name
    return name


def lane_bytes(one: Instruction) -> int:
    """Return the bytes that a lane of a load, store, addition or copy of global memory moves."""
    if class_of(one.opcode) == "add_global" and (numbers := _NUMBERS.search(one.opcode)):
        return int(numbers[1]) // 8 * int(numbers[2] or 1)
    if class_of(one.opcode) not in {"load_global", "store_global", "add_global", "copy_async"}:
        return 0
    width = _WIDTH.search(one.opcode)
    return {"256": 32, "128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}[width[1]] if width else 4


def local_bytes(one: Instruction) -> int:
    """Return the bytes that a lane of a load or store of local memory moves."""
    width = _BITS.search(one.opcode)
    return int(width[1]) // 8 if width else 4


def is_access(one: Instruction) -> bool:
    """Whether an instruction accesses shared memory at addresses from registers, so that it can have bank conflicts."""
    return class_of(one.opcode) in {"ldmatrix", "stmatrix", "load_shared", "store_shared", "atomic_shared"}


def wavefronts(one: Instruction) -> int:
    """Return the wavefronts of shared memory, or of local memory in L1, that an instruction takes without conflicts."""
    kind = class_of(one.opcode)
    if kind in {"ldmatrix", "stmatrix"}:
        # A matrix m16n16 of bytes takes as much as two matrices m8n8.
        twice = 2 if "1616" in one.opcode else 1
        count = _MATRICES.search(one.opcode)
        return twice * (int(count[1]) if count else 1)
    if kind in {"load_shared", "store_shared", "atomic_shared"}:
        width = _BITS.search(one.opcode)
        return int(width[1]) // 32 if width else 1
    if kind in {"load_local", "store_local"}:
        return local_bytes(one) // 4 or 1
    return 1 if kind == "shuffle" else 0


def add_passes(one: Instruction) -> int:
    """Return the passes over the path of shared memory that the bytes of an addition to global memory take."""
    return -(-_LANES * lane_bytes(one) // _PASS_BYTES) if class_of(one.opcode) == "add_global" else 0


def l1_passes(one: Instruction) -> int:
    """Return the passes over the data of L1 that a load of global memory takes, if its lanes lie together."""
    if class_of(one.opcode) != "load_global":
        return 0
    return -(-_LANES * lane_bytes(one) // _PASS_BYTES)


def group_of(one: Instruction) -> str:
    """Return the column of the table of `resources` that counts an instruction."""
    kind = class_of(one.opcode)
    if one.is_tensor:
        return "tensor"
    if kind == "mufu":
        return "mufu"
    if kind == "ldmatrix":
        return "ldmatrix"
    if one.base in _MOVES or ".MOV" in one.opcode:
        return "move"
    if kind in {"fma", "imad", "imad_wide", "half", "pack", "alu", "double", "convert", "uniform", "vote"}:
        return "fp32_int"
    return "other"
