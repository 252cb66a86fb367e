//! Objects as encoded by Kubernetes itself, in JSON and in protobuf: the test data of `k8s.io/api`, which
//! Debian packages. Tests compare our encoding with them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, Source};
use crate::shell;

/// Name for messages.
pub const NAME: &str = "objects that Kubernetes encoded";
/// Environment variable that passes the directory to tests.
pub const VARIABLE: &str = "HAWSER_KUBERNETES_TESTDATA";
/// Release that the table of fields in `apiserver/schema/data` is taken from.
const RELEASE: &str = "1.36";
/// Previous release, whose files are beside those of each release.
const BEFORE: &str = "v1.35.0";
/// Suite that has the release.
const SUITE: &str = "sid";

/// Returns the directory of the files, if setup has fetched them.
pub fn path() -> Option<PathBuf> {
    let directory = directory();
    directory.is_dir().then_some(directory)
}

/// Returns the instruction for a person where setup cannot fetch them.
pub fn command() -> String {
    format!("put testdata/HEAD of k8s.io/api {RELEASE} at {}", directory().display())
}

/// Fetches the files.
pub fn install() -> Result<()> {
    eprintln!("setup: fetching {NAME}");
    fetch().with_context(|| format!("cannot set up {NAME}"))
}

fn fetch() -> Result<()> {
    let work = tempfile::tempdir().context("cannot make a temporary directory")?;
    Apt::open(Source::Suite(SUITE))?.unpack("golang-k8s-api-dev", work.path())?;
    let testdata = work.path().join("usr/share/gocode/src/k8s.io/api/testdata");
    if newest(&testdata)? != BEFORE {
        bail!("Debian's {SUITE} has another release than {RELEASE} by now: name its suite in {}", file!());
    }
    let to = directory();
    // Through a temporary name, so that an existing directory is always complete.
    let partial = to.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    for file in files(&testdata.join("HEAD"))? {
        let Some(name) = file.file_name() else { continue };
        let to = partial.join(name);
        fs::copy(&file, &to)
            .with_context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
    }
    fs::rename(&partial, &to).with_context(|| format!("cannot finish {}", to.display()))
}

/// Returns the newest release beside `HEAD`.
fn newest(testdata: &Path) -> Result<String> {
    let mut names: Vec<String> = files(testdata)?
        .iter()
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
        .filter(|name| name != "HEAD")
        .collect();
    names.sort();
    names.pop().context("the package names no release")
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let what = || format!("cannot read {}", directory.display());
    fs::read_dir(directory).with_context(what)?.map(|entry| Ok(entry.with_context(what)?.path())).collect()
}

fn directory() -> PathBuf {
    shell::cache_dir().join(format!("encoded/{RELEASE}"))
}
