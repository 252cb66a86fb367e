//! The Go program that uses client-go: built here by Debian's compiler with the libraries that Debian
//! packages as source. Nothing is installed on the machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{fresh, sources};
use crate::apt::{Apt, Source};
use crate::shell;

/// Suite that has the client-go of the Kubernetes version that the API server implements.
const SUITE: &str = "sid";

/// Line of that version's `go.mod`.
const VERSION: &str = "k8s.io/api v0.36.";

/// The compiler, and the source of every library that is compiled. The dependencies of their tests and
/// examples would be fifteen times as large.
const PACKAGES: &[&str] = &[
    "golang-1.26-go",
    "golang-1.26-src",
    "golang-k8s-api-dev",
    "golang-k8s-apimachinery-dev",
    "golang-k8s-client-go-dev",
    "golang-k8s-klog-dev",
    "golang-k8s-kube-openapi-dev",
    "golang-k8s-sigs-json-dev",
    "golang-k8s-sigs-randfill-dev",
    "golang-k8s-sigs-structured-merge-diff-dev",
    "golang-k8s-sigs-structured-merge-diff-v6-dev",
    "golang-k8s-sigs-yaml-dev",
    "golang-k8s-streaming-dev",
    "golang-k8s-utils-dev",
    "golang-github-davecgh-go-spew-dev",
    "golang-github-docker-spdystream-dev",
    "golang-github-emicklei-go-restful-dev",
    "golang-github-evanphx-json-patch-dev",
    "golang-github-fxamacker-cbor-dev",
    "golang-github-go-logr-logr-dev",
    "golang-github-go-openapi-jsonpointer-dev",
    "golang-github-go-openapi-jsonreference-dev",
    "golang-github-go-openapi-swag-dev",
    "golang-github-google-btree-dev",
    "golang-github-google-gnostic-models-dev",
    "golang-github-google-go-cmp-dev",
    "golang-github-google-uuid-dev",
    "golang-github-gorilla-websocket-dev",
    "golang-github-gregjones-httpcache-dev",
    "golang-github-josharian-intern-dev",
    "golang-github-json-iterator-go-dev",
    "golang-github-mailru-easyjson-dev",
    "golang-github-modern-go-concurrent-dev",
    "golang-github-modern-go-reflect2-dev",
    "golang-github-munnerz-goautoneg-dev",
    "golang-github-peterbourgon-diskv-dev",
    "golang-github-pkg-errors-dev",
    "golang-github-pmezard-go-difflib-dev",
    "golang-github-spf13-pflag-dev",
    "golang-github-x448-float16-dev",
    "golang-golang-x-net-dev",
    "golang-golang-x-oauth2-dev",
    "golang-golang-x-sys-dev",
    "golang-golang-x-term-dev",
    "golang-golang-x-text-dev",
    "golang-golang-x-time-dev",
    "golang-google-protobuf-dev",
    "golang-gopkg-inf.v0-dev",
    "golang-gopkg-yaml.v2-dev",
    "golang-gopkg-yaml.v3-dev",
];

/// Returns the program, if it was built from the current sources.
pub fn program() -> Option<PathBuf> {
    let built = fs::read(dir().join("complete")).ok();
    (built.is_some() && built == text().ok()).then(|| dir().join("client-go"))
}

/// Returns `true` if the packages to build it with are present.
pub fn has_packages() -> bool {
    fs::read_to_string(packages().join("complete")).is_ok_and(|names| names == PACKAGES.join("\n"))
}

/// Fetches missing packages and builds the program.
pub fn install() -> Result<()> {
    if !has_packages() {
        let into = fresh(&packages())?;
        Apt::open(Source::Suite(SUITE))?.unpack_each(PACKAGES, &into)?;
        let said = fs::read_to_string(libraries().join("src/k8s.io/client-go/go.mod"))
            .context("Debian's client-go has no go.mod")?;
        if !said.contains(VERSION) {
            bail!("Debian's {SUITE} has another client-go by now: name its suite in xtask/src/clients/go.rs");
        }
        fs::write(into.join("complete"), PACKAGES.join("\n")).context("cannot finish the packages")?;
    }
    let unformatted = shell::output(tool("gofmt").arg("-l").arg("."))?;
    if !unformatted.is_empty() {
        bail!("gofmt would change {unformatted}");
    }
    // The program is small and runs briefly: a fast build matters most.
    shell::run(
        tool("go")
            .args(["build", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w", "-o"])
            .arg(dir().join("client-go"))
            .arg("."),
    )?;
    fs::write(dir().join("complete"), text()?).context("cannot say what the program was built from")
}

/// Returns a Go command in the program's folder. The libraries are in a `GOPATH`, as Debian packages them, so
/// that no modules are downloaded.
fn tool(name: &str) -> Command {
    let root = packages().join("usr/lib/go-1.26");
    let mut command = Command::new(root.join("bin").join(name));
    command
        .current_dir(sources().join("go"))
        .env("GOROOT", &root)
        .env("GOPATH", libraries())
        .env("GOCACHE", dir().join("cache"))
        .env("GO111MODULE", "off")
        .env("GOENV", "off")
        .env("GOFLAGS", "")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0");
    command
}

/// Returns all sources of the program, concatenated.
fn text() -> Result<Vec<u8>> {
    let folder = sources().join("go");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.sort();
    let mut text = PACKAGES.join("\n").into_bytes();
    for file in files {
        text.extend(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(text)
}

fn dir() -> PathBuf {
    shell::cache_dir().join("clients/go")
}

fn packages() -> PathBuf {
    dir().join("packages")
}

fn libraries() -> PathBuf {
    packages().join("usr/share/gocode")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_named_once() {
        let mut names = PACKAGES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PACKAGES.len());
    }
}
