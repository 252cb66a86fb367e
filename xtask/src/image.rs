//! Image archives without a container engine: statically linked programs in one layer.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kubelet_image::{ImageConfig, ImageFile, write_image_archive};

use crate::{build_ebpf, shell};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Reference of the test workload, as manifests name it.
const ECHO: &str = "hawser.local/echo:1";
const HAWSER: &str = "hawser.local/hawser:1";

/// An image that is written.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Image {
    Pause,
    Echo,
    Hawser,
}

/// Writes the archives of these images, or of all.
pub fn run(images: &[Image]) -> Result<Vec<PathBuf>> {
    let all = [Image::Pause, Image::Echo, Image::Hawser];
    let write = |image: &Image| match image {
        Image::Pause => pause(),
        Image::Echo => echo(),
        Image::Hawser => hawser(),
    };
    if images.is_empty() { &all } else { images }.iter().map(write).collect()
}

/// Writes the pause image; `hawser` has a copy of its own.
fn pause() -> Result<PathBuf> {
    let path = archives()?.join("pause.tar");
    kubelet_image::write_pause_archive(&path).context("cannot write the pause image")?;
    Ok(path)
}

/// Returns the directory of the archives.
fn archives() -> Result<PathBuf> {
    let dir = shell::target_dir().join("images");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Writes the test workload: HTTP and UDP echo.
pub fn echo() -> Result<PathBuf> {
    let binary = build("tests-echo", "echo")?;
    write(ECHO, "echo", &binary, "/echo")
}

/// Writes the product, for a DaemonSet in any cluster.
fn hawser() -> Result<PathBuf> {
    build_ebpf::run()?;
    let binary = build("userspace-hawser", "hawser")?;
    write(HAWSER, "hawser", &binary, "/hawser")
}

fn build(package: &str, binary: &str) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo
        .args(["build", "--release", "--target", TARGET, "--package", package])
        // The image contains nothing but the program, so it is linked statically with its C library.
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    shell::run(&mut cargo)?;
    Ok(shell::target_dir().join(TARGET).join("release").join(binary))
}

fn write(reference: &str, name: &str, binary: &Path, entrypoint: &str) -> Result<PathBuf> {
    let content = std::fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let path = archives()?.join(format!("{name}.tar"));
    let file = ImageFile { path: name, mode: 0o755, content: &content };
    let config = ImageConfig { entrypoint: vec![entrypoint.to_owned()], ..ImageConfig::default() };
    write_image_archive(&path, reference, &[file], &config)
        .with_context(|| format!("cannot write the image {reference}"))?;
    Ok(path)
}
