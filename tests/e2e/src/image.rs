//! An image of the product under test, so that pods can run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use kubelet_image::{ImageConfig, ImageFile, write_image_archive};

use crate::{existing, hawser, output};

/// Reference of the image, as in `deploy/hawser-proxy.yaml`.
const REFERENCE: &str = "hawser.local/hawser:1";

/// Returns the image's archive: the one in `HAWSER_IMAGE`, such as that of `cargo xtask image hawser`, else one that it
/// writes into a directory. Unlike the former, whose program is linked statically, it contains the test's own binary with
/// the libraries that it is linked with.
pub fn hawser_image(dir: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HAWSER_IMAGE") {
        return existing(path.into());
    }
    let (program, stripped) = (hawser()?, dir.join("hawser.stripped"));
    output(Command::new("strip").arg("-o").arg(&stripped).arg(&program))?;
    let mut files = vec![("hawser".to_owned(), read(&stripped)?)];
    let libraries = output(Command::new("ldd").arg(&program)).unwrap_or_default();
    for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        files.push((path.trim_start_matches('/').to_owned(), read(Path::new(path))?));
    }
    let files: Vec<_> =
        files.iter().map(|(path, content)| ImageFile { path, mode: 0o755, content }).collect();
    let config = ImageConfig { entrypoint: vec!["/hawser".to_owned()], ..ImageConfig::default() };
    let archive = dir.join("hawser.tar");
    write_image_archive(&archive, REFERENCE, &files, &config).context("cannot write hawser's image")?;
    fs::remove_file(stripped).context("cannot remove the stripped program")?;
    Ok(archive)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
