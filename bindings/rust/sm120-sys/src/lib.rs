//! Declarations of libsm120, written by tools/bindings.py from sm120.h. That header has the documentation.
#![no_std]
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_void};

pub const SM120_VERSION_MAJOR: i32 = 0;
pub const SM120_VERSION_MINOR: i32 = 2;
pub const SM120_VERSION_PATCH: i32 = 0;

pub type sm120_status = i32;
pub type sm120_address = u64;
pub type sm120_stream = *mut c_void;
pub type sm120_event = *mut c_void;
pub type sm120_context = *mut c_void;
pub type sm120_kv_cache_gather_args = sm120_kv_cache_append_args;

pub const SM120_OK: sm120_status = 0;
pub const SM120_INVALID_ARGUMENT: sm120_status = 1;
pub const SM120_UNSUPPORTED: sm120_status = 2;
pub const SM120_NO_DEVICE: sm120_status = 3;
pub const SM120_OUT_OF_MEMORY: sm120_status = 4;
pub const SM120_MISALIGNED: sm120_status = 5;
pub const SM120_WORKSPACE_TOO_SMALL: sm120_status = 6;
pub const SM120_INVALID_PROGRAM: sm120_status = 7;
pub const SM120_FAULT: sm120_status = 8;
pub const SM120_DRIVER_ERROR: sm120_status = 9;
pub const SM120_INTERNAL: sm120_status = 10;
pub const SM120_BEFORE: u32 = 0;
pub const SM120_AFTER: u32 = 1;
pub const SM120_OF_INSTRUCTION: i32 = 0;
pub const SM120_OF_FUNCTION: i32 = 1;
pub const SM120_TENSOR_MAP_UINT8: u32 = 0;
pub const SM120_TENSOR_MAP_UINT16: u32 = 1;
pub const SM120_TENSOR_MAP_UINT32: u32 = 2;
pub const SM120_TENSOR_MAP_INT32: u32 = 3;
pub const SM120_TENSOR_MAP_UINT64: u32 = 4;
pub const SM120_TENSOR_MAP_INT64: u32 = 5;
pub const SM120_TENSOR_MAP_FLOAT16: u32 = 6;
pub const SM120_TENSOR_MAP_FLOAT32: u32 = 7;
pub const SM120_TENSOR_MAP_FLOAT64: u32 = 8;
pub const SM120_TENSOR_MAP_BFLOAT16: u32 = 9;
pub const SM120_TENSOR_MAP_FLOAT32_FTZ: u32 = 10;
pub const SM120_TENSOR_MAP_TFLOAT32: u32 = 11;
pub const SM120_TENSOR_MAP_TFLOAT32_FTZ: u32 = 12;
pub const SM120_TENSOR_MAP_16U4_ALIGN8B: u32 = 13;
pub const SM120_TENSOR_MAP_16U4_ALIGN16B: u32 = 14;
pub const SM120_TENSOR_MAP_16U6_ALIGN16B: u32 = 15;
pub const SM120_INTERLEAVE_NONE: u32 = 0;
pub const SM120_INTERLEAVE_16B: u32 = 1;
pub const SM120_INTERLEAVE_32B: u32 = 2;
pub const SM120_SWIZZLE_NONE: u32 = 0;
pub const SM120_SWIZZLE_32B: u32 = 1;
pub const SM120_SWIZZLE_64B: u32 = 2;
pub const SM120_SWIZZLE_128B: u32 = 3;
pub const SM120_SWIZZLE_128B_ATOM_32B: u32 = 4;
pub const SM120_SWIZZLE_128B_ATOM_32B_FLIP_8B: u32 = 5;
pub const SM120_SWIZZLE_128B_ATOM_64B: u32 = 6;
pub const SM120_L2_NONE: u32 = 0;
pub const SM120_L2_64B: u32 = 1;
pub const SM120_L2_128B: u32 = 2;
pub const SM120_L2_256B: u32 = 3;
pub const SM120_FILL_ZERO: u32 = 0;
pub const SM120_FILL_NAN: u32 = 1;
pub const SM120_STEP_PLAIN: u32 = 0;
pub const SM120_STEP_BARRIER: u32 = 1;
pub const SM120_STEP_REACH: u32 = 2;
pub const SM120_STEP_LOAD: u32 = 3;
pub const SM120_STEP_COMMIT: u32 = 4;
pub const SM120_STEP_DRAIN: u32 = 5;
pub const SM120_STEP_WAIT: u32 = 6;
pub const SM120_STEP_ARRIVE: u32 = 7;
pub const SM120_STEP_COPY: u32 = 8;
pub const SM120_STALL_COUNT: u32 = 0;
pub const SM120_STALL_GROUP: u32 = 1;
pub const SM120_STALL_CODE: u32 = 2;
pub const SM120_STALL_MBARRIER: u32 = 3;
pub const SM120_STALL_NOT_SELECTED: u32 = 4;
pub const SM120_STALL_PORTS: u32 = 5;
pub const SM120_STALL_RESULT: u32 = 6;
pub const SM120_F32: u32 = 73730;
pub const SM120_F16: u32 = 69634;
pub const SM120_BF16: u32 = 69636;
pub const SM120_E4M3: u32 = 67594;
pub const SM120_E5M2: u32 = 67596;
pub const SM120_U8: u32 = 67585;
pub const SM120_E8M0: u32 = 67598;
pub const SM120_MXFP8: u32 = 1;
pub const SM120_MXFP8_BF16: u32 = 2;
pub const SM120_MXFP8_F16: u32 = 3;
pub const SM120_NVFP4: u32 = 4;
pub const SM120_NVFP4_MXFP8: u32 = 5;
pub const SM120_FP8: u32 = 6;
pub const SM120_NOT_CAUSAL: u32 = 0;
pub const SM120_CAUSAL_BOTTOM_RIGHT: u32 = 1;
pub const SM120_CAUSAL_TOP_LEFT: u32 = 2;
pub const SM120_NOT_CAUSAL_TOP_LEFT: u32 = 3;
pub const SM120_WINDOW_LEFT: u32 = 1;
pub const SM120_WINDOW_RIGHT: u32 = 2;
pub const SM120_BOOL: u32 = 67590;
pub const SM120_ALONG_HEAD_DIM: u32 = 0;
pub const SM120_ALONG_ROWS: u32 = 1;
pub const SM120_SCALE_UP: u32 = 0;
pub const SM120_SCALE_FLOOR: u32 = 1;
pub const SM120_MX_LINEAR: u32 = 0;
pub const SM120_MX_TILES: u32 = 1;
pub const SM120_MX_Q_TILES: u32 = 2;
pub const SM120_SCALES_LINEAR: u32 = 0;
pub const SM120_SCALES_128X4: u32 = 1;
pub const SM120_SCALES_64X4: u32 = 2;
pub const SM120_GGUF_Q8_0: u32 = 8;
pub const SM120_GGUF_Q2_K: u32 = 10;
pub const SM120_GGUF_Q3_K: u32 = 11;
pub const SM120_GGUF_Q4_K: u32 = 12;
pub const SM120_GGUF_Q5_K: u32 = 13;
pub const SM120_GGUF_Q6_K: u32 = 14;
pub const SM120_GGUF_MXFP4: u32 = 39;
pub const SM120_GGUF_NVFP4: u32 = 40;
pub const SM120_WEIGHTS_NATIVE: u32 = 0;
pub const SM120_WEIGHTS_PACKED: u32 = 1;
pub const SM120_SILU: u32 = 0;
pub const SM120_GELU: u32 = 1;
pub const SM120_ACTIVATIONS_INT8: u32 = 0;
pub const SM120_ACTIVATIONS_INT16: u32 = 1;
pub const SM120_ACTIVATIONS_MXFP8X2: u32 = 2;
pub const SM120_ACTIVATIONS_NVFP4X3: u32 = 3;

#[repr(C)]
pub struct sm120_device {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct sm120_module {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct sm120_kernel {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct sm120_step {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_device_info {
    pub size: u32,
    pub is_virtual: i32,
    pub ordinal: i32,
    pub driver_version: i32,
    pub capability_major: i32,
    pub capability_minor: i32,
    pub multiprocessors: i32,
    pub warp_size: i32,
    pub max_threads_per_block: i32,
    pub max_threads_per_multiprocessor: i32,
    pub shared_bytes_per_block: i32,
    pub shared_bytes_per_multiprocessor: i32,
    pub registers_per_multiprocessor: i32,
    pub clock_khz: i32,
    pub memory_bytes: i64,
    pub l2_bytes: i64,
    pub name: [c_char; 128],
}

impl Default for sm120_device_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_profile_bytes {
    pub path: *const c_char,
    pub bytes: u64,
}

impl Default for sm120_profile_bytes {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_profile_row {
    pub size: u32,
    pub index: u32,
    pub line: u32,
    pub row: u32,
    pub kernel: *const c_char,
    pub file: *const c_char,
    pub text: *const c_char,
    pub opcode: *const c_char,
    pub executed: u64,
    pub lanes: u64,
    pub predicated_off: u64,
    pub branches: u64,
    pub divergent_branches: u64,
    pub shared_accesses: u64,
    pub shared_wavefronts: u64,
    pub shared_ideal_wavefronts: u64,
    pub global_accesses: u64,
    pub global_sectors: u64,
    pub global_ideal_sectors: u64,
    pub global_lines: u64,
    pub global_ideal_lines: u64,
    pub tensor_flops: u64,
    pub bytes: [sm120_profile_bytes; 24],
    pub global_l2_accesses: u64,
    pub global_l2_sectors: u64,
    pub global_reuse: [u64; 24],
    pub shared_paired_accesses: u64,
    pub global_wavefronts: u64,
    pub from_file: *const c_char,
    pub from_line: u32,
    pub global_first_lines: u64,
    pub global_pending_accesses: u64,
    pub global_added_lines: u64,
    pub global_added_words: u64,
    pub global_first_accesses: u64,
}

impl Default for sm120_profile_row {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_copy_piece {
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
    pub first: u64,
}

impl Default for sm120_copy_piece {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_kernel_info {
    pub size: u32,
    pub registers: i32,
    pub static_shared_bytes: i32,
    pub local_bytes: i32,
    pub max_threads: i32,
    pub parameters: i32,
    pub entry: *const c_char,
}

impl Default for sm120_kernel_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_parameter_info {
    pub size: u32,
    pub offset: u32,
    pub bytes: u32,
    pub r#type: [c_char; 12],
    pub name: [c_char; 64],
}

impl Default for sm120_parameter_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_variable_info {
    pub size: u32,
    pub is_constant: i32,
    pub address: u64,
    pub bytes: u64,
    pub name: *const c_char,
    pub r#type: [c_char; 16],
}

impl Default for sm120_variable_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_instruction_info {
    pub size: u32,
    pub line: u32,
    pub file: *const c_char,
    pub text: *const c_char,
    pub text_bytes: u32,
    pub text_line: u32,
    pub from_file: *const c_char,
    pub from_line: u32,
}

impl Default for sm120_instruction_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_watch {
    pub size: u32,
    pub moment: u32,
    pub cta: [i32; 3],
    pub warp: i32,
    pub file: *const c_char,
    pub first_line: u32,
    pub last_line: u32,
    pub address: u64,
    pub bytes: u32,
    pub reserved: u32,
    pub see: Option<unsafe extern "C" fn(*mut c_void, *const sm120_step) -> i32>,
    pub context: *mut c_void,
}

impl Default for sm120_watch {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_step_info {
    pub size: u32,
    pub warp: u32,
    pub cta: [u32; 3],
    pub active: u32,
    pub mask: u32,
    pub index: u32,
    pub entry: *const c_char,
    pub function: *const c_char,
    pub guard: *const c_char,
    pub is_guard_negated: i32,
    pub is_asynchronous: i32,
    pub instruction: sm120_instruction_info,
}

impl Default for sm120_step_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_register_info {
    pub size: u32,
    pub is_write: i32,
    pub lanes: u32,
    pub r#type: [c_char; 12],
    pub name: *const c_char,
    pub value: [u64; 32],
    pub high: [u64; 32],
}

impl Default for sm120_register_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_lanes_info {
    pub size: u32,
    pub warp: u32,
    pub lanes: u32,
    pub is_step: i32,
    pub waits_for: [c_char; 160],
    pub instruction: sm120_instruction_info,
}

impl Default for sm120_lanes_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_builtin_info {
    pub size: u32,
    pub threads: u32,
    pub shared_bytes: u32,
    pub registers_sm120: u32,
    pub registers_sm90: u32,
    pub entry: *const c_char,
    pub source: *const c_char,
    pub operation: *const c_char,
    pub layout: *const c_char,
    pub config: *const c_char,
    pub precision: u32,
    pub dtype: u32,
    pub features: i32,
    pub element_bytes: u32,
    pub head_dim: u32,
    pub q_rows: u32,
    pub kv_rows: u32,
    pub stages: u32,
    pub group_heads: u32,
    pub group_rows: u32,
    pub rows: u32,
    pub columns: u32,
    pub q_warp_rows: u32,
    pub ordered: i32,
    pub key_groups: u32,
}

impl Default for sm120_builtin_info {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_tensor_map {
    pub opaque: [u64; 16],
}

impl Default for sm120_tensor_map {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_tensor_map_args {
    pub size: u32,
    pub data_type: u32,
    pub rank: u32,
    pub interleave: u32,
    pub swizzle: u32,
    pub l2_promotion: u32,
    pub oob_fill: u32,
    pub r#box: [u32; 5],
    pub element_strides: [u32; 5],
    pub reserved: u32,
    pub address: u64,
    pub dims: [u64; 5],
    pub strides: [u64; 4],
}

impl Default for sm120_tensor_map_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_simulated_step {
    pub interval: f64,
    pub wavefronts: f64,
    pub even_port: f64,
    pub odd_port: f64,
    pub loaded: f64,
    pub stored: f64,
    pub added: f64,
    pub written: f64,
    pub amount: i64,
    pub action: i32,
    pub pipe: i32,
    pub latency: i32,
    pub landing: i32,
    pub stall: i32,
    pub waits: i32,
    pub writes: i32,
    pub reads: i32,
    pub ring: i32,
    pub ahead: i32,
    pub line: i32,
    pub place: i32,
}

impl Default for sm120_simulated_step {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_simulated_ring {
    pub bytes: i64,
    pub arrivals: i32,
    pub copies: i32,
    pub once: i32,
    pub each: i32,
    pub left: i32,
    pub is_filled: i32,
}

impl Default for sm120_simulated_ring {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_simulated_delay {
    pub clocks: f64,
    pub cause: i32,
    pub delayed: i32,
}

impl Default for sm120_simulated_delay {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_simulation {
    pub size: u32,
    pub pipes: i32,
    pub is_queued: *const i32,
    pub delays: *const sm120_simulated_delay,
    pub add_rate: f64,
    pub add_queue: f64,
    pub copy_rate: f64,
    pub drain_rate: f64,
    pub load_rate: f64,
    pub store_rate: f64,
    pub port_window: f64,
    pub code_latency: f64,
    pub code_interval: f64,
    pub delay_count: i32,
    pub queue_depth: i32,
    pub is_greedy: i32,
    pub adds_bind: i32,
    pub queues_bind: i32,
    pub mbarrier_wake: i32,
    pub copy_latency: i32,
    pub barrier_interval: i32,
    pub barrier_latency: i32,
    pub cta_start: i32,
    pub cta_interval: i32,
    pub code_sets: i32,
    pub code_ways: i32,
    pub code_ahead: i32,
    pub warps: i32,
    pub beside: i32,
    pub steps: *const sm120_simulated_step,
    pub path_begin: *const i32,
    pub before: *const i32,
    pub behind: *const i32,
    pub rounds_begin: *const i32,
    pub path_of_round: *const i32,
    pub step_count: i32,
    pub path_count: i32,
    pub round_count: i32,
    pub kinds: i32,
    pub turns: i32,
    pub between: i32,
    pub has_roles: i32,
    pub rings: *const sm120_simulated_ring,
    pub ring_count: i32,
    pub stages: i32,
    pub emptied: i32,
    pub kind_of_tile: *const i32,
    pub rounds_of_kind: *const i32,
    pub tiles: i32,
    pub slots: i32,
    pub offset: i64,
    pub places: i32,
}

impl Default for sm120_simulation {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_simulated_event {
    pub begin: i64,
    pub end: i64,
    pub quarter: i32,
    pub warp: i32,
    pub pipe: i32,
}

impl Default for sm120_simulated_event {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_simulation_result {
    pub size: u32,
    pub ended: i32,
    pub clocks: i64,
    pub issued: i64,
    pub lines: i64,
    pub ends: *mut i64,
    pub busy: *mut f64,
    pub stalls: *mut i64,
    pub events: *mut sm120_simulated_event,
    pub event_room: usize,
    pub event_count: usize,
}

impl Default for sm120_simulation_result {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_tensor {
    pub address: u64,
    pub dtype: u32,
    pub reserved: u32,
    pub batch_stride: i64,
    pub head_stride: i64,
    pub row_stride: i64,
}

impl Default for sm120_tensor {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_mask {
    pub address: u64,
    pub dtype: u32,
    pub reserved: u32,
    pub batch_stride: i64,
    pub head_stride: i64,
    pub row_stride: i64,
    pub column_stride: i64,
}

impl Default for sm120_mask {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        unsafe { core::mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_attention_args {
    pub size: u32,
    pub precision: u32,
    pub batch: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub q_rows: i64,
    pub kv_rows: i64,
    pub head_dim: i64,
    pub q: sm120_tensor,
    pub k: sm120_tensor,
    pub v: sm120_tensor,
    pub o: sm120_tensor,
    pub lse: u64,
    pub scale: f32,
    pub causal: u32,
    pub stream: *mut c_void,
    pub v_head_dim: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub window: u32,
    pub softcap: f32,
    pub diagonals: u64,
    pub kv_lengths: u64,
    pub cu_seqlens_q: u64,
    pub cu_seqlens_k: u64,
    pub q_total: i64,
    pub kv_total: i64,
    pub sinks: u64,
    pub alibi_slopes: u64,
    pub alibi_batch_stride: i64,
    pub past_k: sm120_tensor,
    pub past_v: sm120_tensor,
    pub past_rows: i64,
    pub mask: sm120_mask,
    pub config: *const c_char,
    pub q_scale: sm120_tensor,
    pub k_scale: sm120_tensor,
    pub v_scale: sm120_tensor,
    pub o_scale: sm120_tensor,
    pub amax: sm120_tensor,
    pub q_scale_by_kv_head: u32,
    pub no_smoothing: u32,
    pub num_splits: i64,
    pub q_blocks: sm120_tensor,
    pub k_blocks: sm120_tensor,
    pub v_blocks: sm120_tensor,
    pub past_k_blocks: sm120_tensor,
    pub past_v_blocks: sm120_tensor,
}

impl Default for sm120_attention_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_attention_backward_args {
    pub size: u32,
    pub precision: u32,
    pub batch: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub q_rows: i64,
    pub kv_rows: i64,
    pub head_dim: i64,
    pub q: sm120_tensor,
    pub k: sm120_tensor,
    pub v: sm120_tensor,
    pub dout: sm120_tensor,
    pub o: sm120_tensor,
    pub dq: sm120_tensor,
    pub dk: sm120_tensor,
    pub dv: sm120_tensor,
    pub lse: u64,
    pub scale: f32,
    pub causal: u32,
    pub stream: *mut c_void,
    pub v_head_dim: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub window: u32,
    pub accumulate: u32,
    pub dlse: u64,
    pub delta: u64,
    pub deterministic: u32,
    pub softcap: f32,
    pub diagonals: u64,
    pub kv_lengths: u64,
    pub cu_seqlens_q: u64,
    pub cu_seqlens_k: u64,
    pub q_total: i64,
    pub kv_total: i64,
    pub alibi_slopes: u64,
    pub alibi_batch_stride: i64,
    pub mask: sm120_mask,
    pub dmask: sm120_mask,
    pub sinks: u64,
    pub dsinks: u64,
}

impl Default for sm120_attention_backward_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_attention_backward_plan {
    pub size: u32,
    pub kernel: i32,
    pub first_split: i64,
    pub splits: i64,
    pub q_tiles: i64,
    pub sums: i64,
    pub first_head: i64,
    pub group: i64,
    pub turn_tiles: i64,
}

impl Default for sm120_attention_backward_plan {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_attention_with_kv_cache_args {
    pub size: u32,
    pub causal: u32,
    pub batch: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub q_rows: i64,
    pub head_dim: i64,
    pub v_head_dim: i64,
    pub pages: i64,
    pub page_rows: i64,
    pub table_pages: i64,
    pub q: sm120_tensor,
    pub k: sm120_tensor,
    pub v: sm120_tensor,
    pub o: sm120_tensor,
    pub lse: u64,
    pub kv_lengths: u64,
    pub page_table: u64,
    pub page_indptr: u64,
    pub last_page: u64,
    pub sinks: u64,
    pub alibi_slopes: u64,
    pub alibi_batch_stride: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub window: u32,
    pub scale: f32,
    pub softcap: f32,
    pub v_swizzled: u32,
    pub num_splits: i64,
    pub stream: *mut c_void,
    pub tree_mask: u64,
    pub tree_mask_batch_stride: i64,
    pub k_blocks: sm120_tensor,
    pub v_blocks: sm120_tensor,
    pub k_scale: sm120_tensor,
    pub v_scale: sm120_tensor,
}

impl Default for sm120_attention_with_kv_cache_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_merge_states_args {
    pub size: u32,
    pub reserved: u32,
    pub states: i64,
    pub batch: i64,
    pub heads: i64,
    pub rows: i64,
    pub head_dim: i64,
    pub outs: sm120_tensor,
    pub o: sm120_tensor,
    pub lses: u64,
    pub lse: u64,
    pub sinks: u64,
    pub stream: *mut c_void,
}

impl Default for sm120_merge_states_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_quantize_mxfp8_args {
    pub size: u32,
    pub axis: u32,
    pub rounding: u32,
    pub layout: u32,
    pub batch: i64,
    pub heads: i64,
    pub rows: i64,
    pub head_dim: i64,
    pub x: sm120_tensor,
    pub elements: u64,
    pub scales: u64,
    pub stream: *mut c_void,
    pub cu_seqlens: u64,
    pub sequences: i64,
    pub longest: i64,
    pub tile_columns: i64,
    pub precision: u32,
    pub reserved: u32,
}

impl Default for sm120_quantize_mxfp8_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_quantize_nvfp4_args {
    pub size: u32,
    pub layout: u32,
    pub search: u32,
    pub axis: u32,
    pub batch: i64,
    pub heads: i64,
    pub rows: i64,
    pub head_dim: i64,
    pub x: sm120_tensor,
    pub elements: u64,
    pub scales: u64,
    pub global_scale_address: u64,
    pub global_scale: f32,
    pub reserved: u32,
    pub stream: *mut c_void,
}

impl Default for sm120_quantize_nvfp4_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_repack_scales_args {
    pub size: u32,
    pub source: u32,
    pub target: u32,
    pub reserved: u32,
    pub batch: i64,
    pub heads: i64,
    pub rows: i64,
    pub columns: i64,
    pub scales: u64,
    pub repacked: u64,
    pub stream: *mut c_void,
}

impl Default for sm120_repack_scales_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_kv_cache_append_args {
    pub size: u32,
    pub v_swizzled: u32,
    pub batch: i64,
    pub kv_heads: i64,
    pub rows: i64,
    pub head_dim: i64,
    pub v_head_dim: i64,
    pub pages: i64,
    pub page_rows: i64,
    pub table_pages: i64,
    pub k: sm120_tensor,
    pub v: sm120_tensor,
    pub k_cache: sm120_tensor,
    pub v_cache: sm120_tensor,
    pub k_blocks: sm120_tensor,
    pub v_blocks: sm120_tensor,
    pub k_scale: sm120_tensor,
    pub v_scale: sm120_tensor,
    pub slots: u64,
    pub page_table: u64,
    pub kv_lengths: u64,
    pub stream: *mut c_void,
    pub rotary_cos: u64,
    pub rotary_sin: u64,
    pub positions: u64,
    pub rotary_dim: i64,
    pub rotary_positions: i64,
    pub rotary_interleaved: u32,
    pub reserved: u32,
    pub new_lengths: u64,
}

impl Default for sm120_kv_cache_append_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_dequantize_args {
    pub size: u32,
    pub r#type: u32,
    pub rows: i64,
    pub columns: i64,
    pub weights: u64,
    pub weight_bytes: i64,
    pub y: sm120_tensor,
    pub stream: *mut c_void,
}

impl Default for sm120_dequantize_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_repack_args {
    pub size: u32,
    pub r#type: u32,
    pub rows: i64,
    pub columns: i64,
    pub weights: u64,
    pub weight_bytes: i64,
    pub packed: u64,
    pub packed_bytes: i64,
    pub stream: *mut c_void,
}

impl Default for sm120_repack_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sm120_matvec_args {
    pub size: u32,
    pub r#type: u32,
    pub rows: i64,
    pub columns: i64,
    pub vectors: i64,
    pub weights: u64,
    pub weight_bytes: i64,
    pub x: sm120_tensor,
    pub y: sm120_tensor,
    pub bias: u64,
    pub layout: u32,
    pub activation: u32,
    pub stream: *mut c_void,
    pub experts: u64,
    pub expert_count: i64,
    pub chosen: i64,
    pub up: u64,
    pub up_bytes: i64,
    pub activations: u32,
    pub reserved: u32,
}

impl Default for sm120_matvec_args {
    /// Zeros, with its size.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        let zeros: Self = unsafe { core::mem::zeroed() };
        Self {
            size: core::mem::size_of::<Self>() as u32,
            ..zeros
        }
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::size_of::<sm120_device_info>() == 200);
    assert!(core::mem::size_of::<sm120_profile_bytes>() == 16);
    assert!(core::mem::size_of::<sm120_profile_row>() == 824);
    assert!(core::mem::size_of::<sm120_copy_piece>() == 32);
    assert!(core::mem::size_of::<sm120_kernel_info>() == 32);
    assert!(core::mem::size_of::<sm120_parameter_info>() == 88);
    assert!(core::mem::size_of::<sm120_variable_info>() == 48);
    assert!(core::mem::size_of::<sm120_instruction_info>() == 48);
    assert!(core::mem::size_of::<sm120_watch>() == 72);
    assert!(core::mem::size_of::<sm120_step_info>() == 112);
    assert!(core::mem::size_of::<sm120_register_info>() == 544);
    assert!(core::mem::size_of::<sm120_lanes_info>() == 224);
    assert!(core::mem::size_of::<sm120_builtin_info>() == 128);
    assert!(core::mem::size_of::<sm120_tensor_map>() == 128);
    assert!(core::mem::size_of::<sm120_tensor_map_args>() == 152);
    assert!(core::mem::size_of::<sm120_simulated_step>() == 120);
    assert!(core::mem::size_of::<sm120_simulated_ring>() == 32);
    assert!(core::mem::size_of::<sm120_simulated_delay>() == 16);
    assert!(core::mem::size_of::<sm120_simulation>() == 304);
    assert!(core::mem::size_of::<sm120_simulated_event>() == 32);
    assert!(core::mem::size_of::<sm120_simulation_result>() == 80);
    assert!(core::mem::size_of::<sm120_tensor>() == 40);
    assert!(core::mem::size_of::<sm120_mask>() == 48);
    assert!(core::mem::size_of::<sm120_attention_args>() == 904);
    assert!(core::mem::size_of::<sm120_attention_backward_args>() == 632);
    assert!(core::mem::size_of::<sm120_attention_backward_plan>() == 64);
    assert!(core::mem::size_of::<sm120_attention_with_kv_cache_args>() == 528);
    assert!(core::mem::size_of::<sm120_merge_states_args>() == 160);
    assert!(core::mem::size_of::<sm120_quantize_mxfp8_args>() == 152);
    assert!(core::mem::size_of::<sm120_quantize_nvfp4_args>() == 128);
    assert!(core::mem::size_of::<sm120_repack_scales_args>() == 72);
    assert!(core::mem::size_of::<sm120_kv_cache_append_args>() == 480);
    assert!(core::mem::size_of::<sm120_dequantize_args>() == 88);
    assert!(core::mem::size_of::<sm120_repack_args>() == 64);
    assert!(core::mem::size_of::<sm120_matvec_args>() == 200);
};

extern "C" {
    pub fn sm120_version() -> i32;
    pub fn sm120_version_string() -> *const c_char;
    pub fn sm120_status_string(status: sm120_status) -> *const c_char;
    pub fn sm120_last_error() -> *const c_char;
    pub fn sm120_last_driver_error() -> i32;
    pub fn sm120_device_count(kind: *const c_char, count: *mut i32) -> sm120_status;
    pub fn sm120_device_open(name: *const c_char, device: *mut *mut sm120_device) -> sm120_status;
    pub fn sm120_device_open_context(
        name: *const c_char,
        context: sm120_context,
        device: *mut *mut sm120_device,
    ) -> sm120_status;
    pub fn sm120_device_context(
        device: *mut sm120_device,
        context: *mut sm120_context,
    ) -> sm120_status;
    pub fn sm120_device_close(device: *mut sm120_device) -> sm120_status;
    pub fn sm120_device_query(
        device: *mut sm120_device,
        info: *mut sm120_device_info,
    ) -> sm120_status;
    pub fn sm120_device_synchronize(device: *mut sm120_device) -> sm120_status;
    pub fn sm120_device_counter(
        device: *mut sm120_device,
        index: i32,
        name: *mut *const c_char,
        value: *mut u64,
    ) -> sm120_status;
    pub fn sm120_device_counters_reset(device: *mut sm120_device) -> sm120_status;
    pub fn sm120_profile_begin(device: *mut sm120_device) -> sm120_status;
    pub fn sm120_profile_read(
        device: *mut sm120_device,
        index: i32,
        row: *mut sm120_profile_row,
    ) -> sm120_status;
    pub fn sm120_profile_cta(
        device: *mut sm120_device,
        index: i32,
        kernel: *mut *const c_char,
        cta: *mut u64,
        executed: *mut u64,
    ) -> sm120_status;
    pub fn sm120_profile_end(device: *mut sm120_device) -> sm120_status;
    pub fn sm120_device_interrupt(device: *mut sm120_device) -> sm120_status;
    pub fn sm120_alloc(
        device: *mut sm120_device,
        bytes: usize,
        address: *mut sm120_address,
    ) -> sm120_status;
    pub fn sm120_free(device: *mut sm120_device, address: sm120_address) -> sm120_status;
    pub fn sm120_alloc_pinned(
        device: *mut sm120_device,
        bytes: usize,
        host: *mut *mut c_void,
        address: *mut sm120_address,
    ) -> sm120_status;
    pub fn sm120_free_pinned(device: *mut sm120_device, host: *mut c_void) -> sm120_status;
    pub fn sm120_copy_to_device(
        device: *mut sm120_device,
        to: sm120_address,
        from: *const c_void,
        bytes: usize,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_copy_to_host(
        device: *mut sm120_device,
        to: *mut c_void,
        from: sm120_address,
        bytes: usize,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_copy_on_device(
        device: *mut sm120_device,
        to: sm120_address,
        from: sm120_address,
        bytes: usize,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_copy_batch_prepare(
        device: *mut sm120_device,
        pieces: *mut sm120_copy_piece,
        count: usize,
    ) -> sm120_status;
    pub fn sm120_copy_batch(
        device: *mut sm120_device,
        pieces: sm120_address,
        count: usize,
        ctas: u32,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_fill(
        device: *mut sm120_device,
        address: sm120_address,
        value: u8,
        bytes: usize,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_stream_create(
        device: *mut sm120_device,
        stream: *mut sm120_stream,
    ) -> sm120_status;
    pub fn sm120_stream_destroy(device: *mut sm120_device, stream: sm120_stream) -> sm120_status;
    pub fn sm120_stream_synchronize(
        device: *mut sm120_device,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_stream_wait_event(
        device: *mut sm120_device,
        stream: sm120_stream,
        event: sm120_event,
    ) -> sm120_status;
    pub fn sm120_event_create(device: *mut sm120_device, event: *mut sm120_event) -> sm120_status;
    pub fn sm120_event_destroy(device: *mut sm120_device, event: sm120_event) -> sm120_status;
    pub fn sm120_event_record(
        device: *mut sm120_device,
        event: sm120_event,
        stream: sm120_stream,
    ) -> sm120_status;
    pub fn sm120_event_synchronize(device: *mut sm120_device, event: sm120_event) -> sm120_status;
    pub fn sm120_event_elapsed(
        device: *mut sm120_device,
        start: sm120_event,
        end: sm120_event,
        milliseconds: *mut f32,
    ) -> sm120_status;
    pub fn sm120_module_load(
        device: *mut sm120_device,
        image: *const c_void,
        bytes: usize,
        name: *const c_char,
        module: *mut *mut sm120_module,
    ) -> sm120_status;
    pub fn sm120_module_unload(module: *mut sm120_module) -> sm120_status;
    pub fn sm120_module_kernel(
        module: *mut sm120_module,
        entry: *const c_char,
        kernel: *mut *mut sm120_kernel,
    ) -> sm120_status;
    pub fn sm120_module_entry(
        module: *mut sm120_module,
        index: i32,
        entry: *mut *const c_char,
    ) -> sm120_status;
    pub fn sm120_module_variable(
        module: *mut sm120_module,
        index: i32,
        info: *mut sm120_variable_info,
    ) -> sm120_status;
    pub fn sm120_kernel_query(
        kernel: *mut sm120_kernel,
        info: *mut sm120_kernel_info,
    ) -> sm120_status;
    pub fn sm120_kernel_parameter(
        kernel: *mut sm120_kernel,
        index: i32,
        info: *mut sm120_parameter_info,
    ) -> sm120_status;
    pub fn sm120_kernel_occupancy(
        kernel: *mut sm120_kernel,
        threads: u32,
        shared_bytes: u32,
        blocks_per_multiprocessor: *mut i32,
    ) -> sm120_status;
    pub fn sm120_launch(
        kernel: *mut sm120_kernel,
        grid: *const u32,
        block: *const u32,
        shared_bytes: u32,
        stream: sm120_stream,
        arguments: *const *const c_void,
        argument_bytes: *const usize,
        argument_count: usize,
    ) -> sm120_status;
    pub fn sm120_launch_cooperative(
        kernel: *mut sm120_kernel,
        grid: *const u32,
        block: *const u32,
        shared_bytes: u32,
        stream: sm120_stream,
        arguments: *const *const c_void,
        argument_bytes: *const usize,
        argument_count: usize,
    ) -> sm120_status;
    pub fn sm120_kernel_instruction(
        kernel: *mut sm120_kernel,
        index: i32,
        info: *mut sm120_instruction_info,
    ) -> sm120_status;
    pub fn sm120_device_watch(device: *mut sm120_device, watch: *const sm120_watch) -> sm120_status;
    pub fn sm120_step_query(step: *const sm120_step, info: *mut sm120_step_info) -> sm120_status;
    pub fn sm120_step_register(
        step: *const sm120_step,
        which: i32,
        index: i32,
        info: *mut sm120_register_info,
    ) -> sm120_status;
    pub fn sm120_step_variable(
        step: *const sm120_step,
        index: i32,
        info: *mut sm120_variable_info,
    ) -> sm120_status;
    pub fn sm120_step_lanes(
        step: *const sm120_step,
        index: i32,
        info: *mut sm120_lanes_info,
    ) -> sm120_status;
    pub fn sm120_step_shared(
        step: *const sm120_step,
        address: u32,
        to: *mut c_void,
        bytes: usize,
    ) -> sm120_status;
    pub fn sm120_builtin(index: i32, info: *mut sm120_builtin_info) -> sm120_status;
    pub fn sm120_builtin_kernel(
        device: *mut sm120_device,
        index: i32,
        kernel: *mut *mut sm120_kernel,
    ) -> sm120_status;
    pub fn sm120_builtin_image(
        index: i32,
        target: *const c_char,
        form: *const c_char,
        image: *mut *const c_void,
        bytes: *mut usize,
    ) -> sm120_status;
    pub fn sm120_builtin_constant(
        index: i32,
        name: *mut *const c_char,
        value: *mut i32,
    ) -> sm120_status;
    pub fn sm120_tensor_map_encode(
        device: *mut sm120_device,
        args: *const sm120_tensor_map_args,
        map: *mut sm120_tensor_map,
    ) -> sm120_status;
    pub fn sm120_tensor_map_replace_address(
        device: *mut sm120_device,
        map: *mut sm120_tensor_map,
        address: sm120_address,
    ) -> sm120_status;
    pub fn sm120_simulate(
        simulation: *const sm120_simulation,
        result: *mut sm120_simulation_result,
    ) -> sm120_status;
    pub fn sm120_attention_workspace(
        device: *mut sm120_device,
        args: *const sm120_attention_args,
        workspace_bytes: *mut usize,
    ) -> sm120_status;
    pub fn sm120_attention(
        device: *mut sm120_device,
        args: *const sm120_attention_args,
        workspace: sm120_address,
        workspace_bytes: usize,
    ) -> sm120_status;
    pub fn sm120_attention_config(
        args: *const sm120_attention_args,
        index: i32,
        config: *mut *const c_char,
        kernel: *mut i32,
    ) -> sm120_status;
    pub fn sm120_attention_chosen(
        device: *mut sm120_device,
        args: *const sm120_attention_args,
        config: *mut *const c_char,
        kernel: *mut i32,
    ) -> sm120_status;
    pub fn sm120_attention_splits(
        device: *mut sm120_device,
        args: *const sm120_attention_args,
        first: *mut i64,
        splits: *mut i64,
    ) -> sm120_status;
    pub fn sm120_attention_backward_chosen(
        device: *mut sm120_device,
        args: *const sm120_attention_backward_args,
        plan: *mut sm120_attention_backward_plan,
    ) -> sm120_status;
    pub fn sm120_attention_backward_workspace(
        device: *mut sm120_device,
        args: *const sm120_attention_backward_args,
        workspace_bytes: *mut usize,
    ) -> sm120_status;
    pub fn sm120_attention_backward(
        device: *mut sm120_device,
        args: *const sm120_attention_backward_args,
        workspace: sm120_address,
        workspace_bytes: usize,
    ) -> sm120_status;
    pub fn sm120_attention_with_kv_cache_workspace(
        device: *mut sm120_device,
        args: *const sm120_attention_with_kv_cache_args,
        workspace_bytes: *mut usize,
    ) -> sm120_status;
    pub fn sm120_attention_with_kv_cache(
        device: *mut sm120_device,
        args: *const sm120_attention_with_kv_cache_args,
        workspace: sm120_address,
        workspace_bytes: usize,
    ) -> sm120_status;
    pub fn sm120_merge_states(
        device: *mut sm120_device,
        args: *const sm120_merge_states_args,
    ) -> sm120_status;
    pub fn sm120_quantize_mxfp8(
        device: *mut sm120_device,
        args: *const sm120_quantize_mxfp8_args,
    ) -> sm120_status;
    pub fn sm120_quantize_nvfp4(
        device: *mut sm120_device,
        args: *const sm120_quantize_nvfp4_args,
    ) -> sm120_status;
    pub fn sm120_repack_scales(
        device: *mut sm120_device,
        args: *const sm120_repack_scales_args,
    ) -> sm120_status;
    pub fn sm120_kv_cache_append(
        device: *mut sm120_device,
        args: *const sm120_kv_cache_append_args,
    ) -> sm120_status;
    pub fn sm120_kv_cache_gather(
        device: *mut sm120_device,
        args: *const sm120_kv_cache_gather_args,
    ) -> sm120_status;
    pub fn sm120_weights_bytes(
        r#type: u32,
        layout: u32,
        rows: i64,
        columns: i64,
        bytes: *mut i64,
    ) -> sm120_status;
    pub fn sm120_dequantize(
        device: *mut sm120_device,
        args: *const sm120_dequantize_args,
    ) -> sm120_status;
    pub fn sm120_repack(device: *mut sm120_device, args: *const sm120_repack_args) -> sm120_status;
    pub fn sm120_matvec_workspace(
        device: *mut sm120_device,
        args: *const sm120_matvec_args,
        workspace_bytes: *mut usize,
    ) -> sm120_status;
    pub fn sm120_matvec(
        device: *mut sm120_device,
        args: *const sm120_matvec_args,
        workspace: sm120_address,
        workspace_bytes: usize,
    ) -> sm120_status;
}
