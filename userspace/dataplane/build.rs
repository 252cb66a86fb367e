//! Copies the compiled eBPF programs to the place where the crate embeds them. Without them the crate still
//! builds, with an empty object that refuses to load.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("hawser-ebpf.o");
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=HAWSER_EBPF_OBJECT");
    let object = env::var_os("HAWSER_EBPF_OBJECT")
        .map_or_else(|| manifest.join("../../target/bpf/hawser-ebpf.o"), PathBuf::from);
    println!("cargo:rerun-if-changed={}", object.display());
    copy(&object, &out);
}

/// Copies the object, or writes an empty file if it has not been built.
fn copy(object: &Path, out: &Path) {
    let bytes = fs::read(object).unwrap_or_default();
    fs::write(out, bytes).expect("OUT_DIR is writable");
}
