//! Link libsm120 from SM120_LIB_DIR, else from where the linker searches. SM120_STATIC=1 links the static library.
use std::env;

fn main() {
    for name in ["SM120_LIB_DIR", "SM120_STATIC"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let folder = env::var("SM120_LIB_DIR").unwrap_or_default();
    let is_static = env::var("SM120_STATIC").is_ok_and(|value| value == "1");
    if !folder.is_empty() {
        println!("cargo:rustc-link-search=native={folder}");
    }
    if is_static {
        println!("cargo:rustc-link-lib=static=sm120");
        for name in ["m", "dl", "pthread"] {
            println!("cargo:rustc-link-lib=dylib={name}");
        }
        return;
    }
    println!("cargo:rustc-link-lib=dylib=sm120");
    if !folder.is_empty() {
        // Of this package's own examples; a program that depends on it sets its own.
        println!("cargo:rustc-link-arg-examples=-Wl,-rpath,{folder}");
    }
}
