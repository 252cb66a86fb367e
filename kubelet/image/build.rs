//! Compiles the pause program to a freestanding, static executable of a few kilobytes, which is embedded in
//! the library. Only the compiler that builds this workspace is needed.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=pause/pause.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("pause");
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=bin", "--crate-name=pause", "--target", &target])
        .args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "-Crelocation-model=static"])
        .args(["-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib", "-Clink-arg=-static"])
        .args(["-Clink-arg=-Wl,--build-id=none", "-o"])
        .arg(&out)
        .arg("pause/pause.rs")
        .output()
        .expect("the compiler that cargo uses can be started");
    assert!(
        output.status.success(),
        "compiling pause/pause.rs failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
