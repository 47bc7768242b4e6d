//! Causal attention in bf16, checked: cargo run --example attention [device]
use std::ffi::{CStr, CString};
use std::ptr;

use sm120_sys::*;

const HEADS: usize = 2;
const ROWS: usize = 100;
const D: usize = 64;
const COUNT: usize = HEADS * ROWS * D;

/// Turn a failure into the library's message.
fn check(status: sm120_status) -> Result<(), String> {
    if status == SM120_OK {
        return Ok(());
    }
    // SAFETY: the message lives until this thread's next call.
    Err(unsafe { CStr::from_ptr(sm120_last_error()) }
        .to_string_lossy()
        .into_owned())
}

/// The bits of a float that bf16 keeps; the values of this example lose nothing.
fn bf16(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

fn main() -> Result<(), String> {
    let name = CString::new(std::env::args().nth(1).unwrap_or("virtual".into()))
        .map_err(|e| e.to_string())?;
    let mut device = ptr::null_mut();
    check(unsafe { sm120_device_open(name.as_ptr(), &mut device) })?;

    // Scores of equal keys are equal, so that row i of o is the mean of the values 0 to i.
    let ones = [bf16(1.0); COUNT];
    let values: Vec<u16> = (0..COUNT).map(|n| bf16((n / D % ROWS) as f32)).collect();
    let mut tensors = [sm120_tensor::default(); 4];
    for (tensor, data) in tensors.iter_mut().zip([&ones[..], &ones, &values, &ones]) {
        tensor.dtype = SM120_BF16;
        (tensor.batch_stride, tensor.head_stride, tensor.row_stride) =
            (COUNT as i64, (ROWS * D) as i64, D as i64);
        check(unsafe { sm120_alloc(device, 4 * COUNT, &mut tensor.address) })?;
        let from = data.as_ptr().cast();
        check(unsafe {
            sm120_copy_to_device(device, tensor.address, from, 2 * COUNT, ptr::null_mut())
        })?;
    }
    tensors[3].dtype = SM120_F32;

    let args = sm120_attention_args {
        precision: SM120_BF16,
        causal: SM120_CAUSAL_BOTTOM_RIGHT,
        batch: 1,
        heads: HEADS as i64,
        kv_heads: HEADS as i64,
        q_rows: ROWS as i64,
        kv_rows: ROWS as i64,
        head_dim: D as i64,
        q: tensors[0],
        k: tensors[1],
        v: tensors[2],
        o: tensors[3],
        scale: 1.0 / (D as f32).sqrt(),
        ..Default::default()
    };
    let (mut bytes, mut workspace) = (0, 0);
    check(unsafe { sm120_attention_workspace(device, &args, &mut bytes) })?;
    if bytes != 0 {
        check(unsafe { sm120_alloc(device, bytes, &mut workspace) })?;
    }
    check(unsafe { sm120_attention(device, &args, workspace, bytes) })?;

    let mut means = vec![0f32; COUNT];
    let to = means.as_mut_ptr().cast();
    check(unsafe { sm120_copy_to_host(device, to, args.o.address, 4 * COUNT, ptr::null_mut()) })?;
    check(unsafe { sm120_device_synchronize(device) })?;
    check(unsafe { sm120_device_close(device) })?; // and free its memory
    let error = |(n, x): (usize, &f32)| (x - (n / D % ROWS) as f32 / 2.0).abs();
    let worst = means.iter().enumerate().map(error).fold(0.0, f32::max);
    println!("largest error {worst:.3}");
    if worst < 0.3 {
        Ok(())
    } else {
        Err("the result is wrong".into())
    }
}
