//! `cargo xtask build-ebpf`: compiles the kernel programs to `target/bpf/hawser-ebpf.o`, which
//! `userspace/dataplane` embeds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail};

const TARGET: &str = "bpfel-unknown-none";
/// Debian's compiler, and the `core` for BPF that its package libstd-rust-web-dev-bpf contains.
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";
const SYSTEM_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none";
/// Flags of the programs: debug information for BTF, and the instructions of Linux 5.1, without which the
/// compiler replaces many instructions by two.
const RUSTFLAGS: [&str; 3] = ["-Cdebuginfo=2", "-Clink-arg=--btf", "-Ctarget-cpu=v3"];
/// Release profile for these programs; that of the workspace is not changed.
const PROFILE: [(&str, &str); 6] = [
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "2"),
    ("CARGO_PROFILE_RELEASE_STRIP", "none"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
];

/// A compiler for kernel programs.
enum Toolchain {
    /// Debian's compiler, with a prebuilt `core`.
    System,
    /// A rustup nightly, with the source of `core`.
    Nightly,
}

/// Compiles the programs if anything has changed since the last time; returns the path of the object.
///
/// # Errors
///
/// Fails if no compiler or linker for BPF is found (the message says which, and how to get it), or if the
/// build fails.
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

/// Returns a cargo command with the compiler, without the variables of the surrounding build.
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

/// Finds bpf-linker, in `PATH` or in cargo's install directory.
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

/// Copies the object without its debug sections, and only if it differs, so that crates that embed it are not
/// rebuilt needlessly.
fn copy_if_changed(from: &Path, to: &Path) -> anyhow::Result<()> {
    let built = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    let new = without_debug(&built).with_context(|| format!("{} is not a 64-bit object", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).with_context(|| format!("writing {}", to.display()))
}

/// Removes the sections that only debuggers read; BTF, which the kernel reads, stays. Their headers are kept,
/// without content, so that indexes into the section table do not change.
///
/// Returns `None` if the bytes are not a 64-bit little-endian ELF object.
fn without_debug(elf: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 64;
    const SECTION: usize = 64;
    const SHT_NOBITS: u32 = 8;
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let sections = usize::try_from(number::<8>(elf, 40)?).ok()?;
    let count = usize::try_from(number::<2>(elf, 60)?).ok()?;
    let table = elf.get(sections..sections.checked_add(count.checked_mul(SECTION)?)?)?;
    let mut table = table.to_vec();
    let names_at = number::<2>(elf, 62)? as usize * SECTION;
    let names = usize::try_from(number::<8>(&table, names_at + 24)?).ok()?;
    let mut kept = elf.get(..HEADER)?.to_vec();
    for header in table.chunks_exact_mut(SECTION) {
        let name = elf.get(names + number::<4>(header, 0)? as usize..)?;
        let debug = name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
        let kind = number::<4>(header, 4)? as u32;
        let offset = usize::try_from(number::<8>(header, 24)?).ok()?;
        let size = usize::try_from(number::<8>(header, 32)?).ok()?;
        if debug {
            // An unused header: no type, no content.
            header[4..].fill(0);
        } else if kind != 0 && kind != SHT_NOBITS {
            let align = usize::try_from(number::<8>(header, 48)?).ok()?.max(1);
            kept.resize(kept.len().next_multiple_of(align), 0);
            header[24..32].copy_from_slice(&(kept.len() as u64).to_le_bytes());
            kept.extend(elf.get(offset..offset.checked_add(size)?)?);
        }
    }
    kept.resize(kept.len().next_multiple_of(8), 0);
    let moved = (kept.len() as u64).to_le_bytes();
    kept[40..48].copy_from_slice(&moved);
    kept.extend(table);
    Some(kept)
}

/// Reads a little-endian number of `N` bytes at an offset.
fn number<const N: usize>(bytes: &[u8], offset: usize) -> Option<u64> {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(bytes.get(offset..offset.checked_add(N)?)?);
    Some(u64::from_le_bytes(wide))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an object with these sections and contents, the last being the string table of names.
    fn object(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut names = vec![0];
        let mut elf = [b"\x7fELF\x02\x01".as_slice(), &[0; 58]].concat();
        let mut headers = vec![[0_u8; 64]];
        for (name, contents) in sections.iter().chain([&(".strtab", [].as_slice())]) {
            let mut header = [0_u8; 64];
            header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[4] = 1;
            names.extend(name.bytes().chain([0]));
            header[24..32].copy_from_slice(&(elf.len() as u64).to_le_bytes());
            let contents = if *name == ".strtab" { names.as_slice() } else { contents };
            header[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            elf.extend(contents);
            headers.push(header);
        }
        let table = elf.len() as u64;
        elf[40..48].copy_from_slice(&table.to_le_bytes());
        elf[60..62].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        elf[62..64].copy_from_slice(&(headers.len() as u16 - 1).to_le_bytes());
        elf.extend(headers.concat());
        elf
    }

    /// Returns the content of a section by index.
    fn section(elf: &[u8], index: usize) -> &[u8] {
        let header = &elf[number::<8>(elf, 40).unwrap() as usize + 64 * index..];
        let offset = number::<8>(header, 24).unwrap() as usize;
        &elf[offset..offset + number::<8>(header, 32).unwrap() as usize]
    }

    #[test]
    fn debug_sections_are_dropped_and_others_keep_index_and_contents() {
        let elf = object(&[("xdp", b"code"), (".debug_info", &[7; 500]), (".BTF", b"types"), ("maps", b"m")]);
        let stripped = without_debug(&elf).unwrap();
        assert_eq!(section(&stripped, 1), b"code");
        assert_eq!(section(&stripped, 2), b"");
        assert_eq!(section(&stripped, 3), b"types");
        assert_eq!(section(&stripped, 4), b"m");
        assert!(stripped.len() + 490 < elf.len());
    }

    #[test]
    fn files_that_are_not_elf_objects_are_refused() {
        assert_eq!(without_debug(b"#!/bin/sh"), None);
        assert_eq!(without_debug(b"\x7fELF\x02\x01"), None);
    }
}
