//! `cargo xtask build-ebpf`: compiles the kernel programs to `target/bpf/hawser-ebpf.o`, which
//! `userspace/dataplane` embeds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail};

const TARGET: &str = "bpfel-unknown-none";
/// Debian's compiler, and the `core` for BPF that its package libstd-rust-web-dev-bpf brings.
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";
const SYSTEM_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none";
/// What the programs are compiled with: debug information for BTF, and the instructions of Linux
/// 5.1, without which the compiler makes two of many.
const RUSTFLAGS: [&str; 3] = ["-Cdebuginfo=2", "-Clink-arg=--btf", "-Ctarget-cpu=v3"];
/// The release profile as these programs need it; the workspace's own stays as it is.
const PROFILE: [(&str, &str); 6] = [
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "2"),
    ("CARGO_PROFILE_RELEASE_STRIP", "none"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
];

/// A compiler that can make programs for the kernel.
enum Toolchain {
    /// Debian's, with a prebuilt `core`.
    System,
    /// A nightly of rustup's, with the source of `core`.
    Nightly,
}

/// Compiles the programs, if anything has changed since the last time; gives the object.
///
/// # Errors
/// No compiler or linker for BPF is here (the message says which, and how to get it), or the
/// build failed.
pub fn run() -> anyhow::Result<PathBuf> {
    let toolchain = find_toolchain()?;
    let linker = find_linker()?;
    let root = workspace();
    let directory = root.join("target/bpf");
    let mut cargo = command(&toolchain);
    let status = cargo
        .current_dir(&root)
        .args(["build", "--release", "--quiet", "--package", "ebpf-programs", "--target", TARGET])
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        .env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\x1f"))
        .envs(PROFILE)
        .status()
        .with_context(|| format!("running {cargo:?}"))?;
    if !status.success() {
        bail!("compiling the eBPF programs failed ({status})");
    }
    let built = directory.join(TARGET).join("release/hawser-ebpf");
    let object = directory.join("hawser-ebpf.o");
    copy_if_changed(&built, &object)?;
    Ok(object)
}

/// Cargo with the compiler, and without what the surrounding build has set for itself.
fn command(toolchain: &Toolchain) -> Command {
    let mut command = match toolchain {
        Toolchain::System => {
            let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            command.env("RUSTC", SYSTEM_RUSTC).env("RUSTC_BOOTSTRAP", "1");
            command
        }
        Toolchain::Nightly => {
            let mut command = Command::new("rustup");
            command.args(["run", "nightly", "cargo", "-Zbuild-std=core"]);
            command.env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
            command
        }
    };
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let foreign = ["CARGO_UNSTABLE_", "CARGO_RESOLVER_", "CARGO_PROFILE_", "CARGO_BUILD_", "__CARGO_"];
        if foreign.iter().any(|prefix| text.starts_with(prefix))
            || ["CARGO_TARGET_DIR", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"].contains(&&*text)
        {
            command.env_remove(&name);
        }
    }
    command
}

fn find_toolchain() -> anyhow::Result<Toolchain> {
    if Path::new(SYSTEM_RUSTC).exists() && Path::new(SYSTEM_CORE).exists() {
        return Ok(Toolchain::System);
    }
    let sysroot = Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]).output();
    let nightly = sysroot.ok().filter(|output| output.status.success());
    let Some(nightly) = nightly else {
        bail!(
            "no compiler for BPF: neither Debian's ({SYSTEM_RUSTC} with {SYSTEM_CORE}) nor rustup's nightly; \
             run `cargo xtask setup`"
        );
    };
    let sysroot = PathBuf::from(String::from_utf8_lossy(&nightly.stdout).trim());
    if !sysroot.join("lib/rustlib/src/rust/library/core").exists() {
        bail!(
            "no compiler for BPF: rustup's nightly lacks the component rust-src, and Debian's {SYSTEM_CORE} is \
             not there; run `cargo xtask setup`, or `rustup component add rust-src --toolchain nightly`"
        );
    }
    Ok(Toolchain::Nightly)
}

/// bpf-linker, on the path or where cargo installs.
fn find_linker() -> anyhow::Result<PathBuf> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(home.map(|home| home.join("bin")));
    places
        .map(|place| place.join("bpf-linker"))
        .find(|file| file.is_file())
        .context("bpf-linker is not installed; run `cargo xtask setup`")
}

/// Copies only what differs, so that nothing that embeds the object is built again in vain.
fn copy_if_changed(from: &Path, to: &Path) -> anyhow::Result<()> {
    let new = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).with_context(|| format!("writing {}", to.display()))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
