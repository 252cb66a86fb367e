//! The Python and JavaScript clients, and helm's library through its Python bindings, against `hawser
//! apiserver`: each test file with a server of its own, run by the language's own test runner.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests_clients::{Api, client_path, run};
use tests_e2e::eventually;

fn sources(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(language)
}

/// Runs a command that must succeed; a failure shows all of its output.
fn passes(api: &Api, command: &mut Command) -> Result<String> {
    command.env("KUBECONFIG", api.kubeconfig()).env("HOME", api.dir());
    let outcome = run(command, "")?;
    let said = outcome.stdout + &outcome.stderr;
    ensure!(outcome.success, "{said}");
    Ok(said)
}

fn python(api: Api, file: &str) -> Result<()> {
    let mut command = Command::new(client_path("HAWSER_CLIENT_PYTHON")?);
    command.arg(sources("python").join(file)).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(api.dir());
    let said = passes(&api, &mut command)?;
    ensure!(said.contains("\nOK"), "{said}");
    api.stop()
}

#[test]
#[ignore = "needs the Python client and the binary: cargo xtask test"]
fn python_typed_client() -> Result<()> {
    python(Api::start()?, "test_typed.py")
}

#[test]
#[ignore = "needs the Python client and the binary: cargo xtask test"]
fn python_dynamic_client() -> Result<()> {
    python(Api::start()?, "test_dynamic.py")
}

#[test]
#[ignore = "needs the Python client and the binary: cargo xtask test"]
fn python_tests_of_the_package_itself() -> Result<()> {
    // These tests expect the ServiceAccount that pods need.
    let api = Api::with_controllers()?;
    eventually("the namespace has its ServiceAccount", || {
        let mut command = Command::new(client_path("HAWSER_KUBECTL_1_36")?);
        command.args(["get", "serviceaccount", "default"]).env("KUBECONFIG", api.kubeconfig());
        Ok(run(&mut command, "")?.success.then_some(()))
    })?;
    python(api, "test_published.py")
}

#[test]
#[ignore = "needs helm's library and the binary: cargo xtask test"]
fn helm_installs_upgrades_and_removes_charts() -> Result<()> {
    python(Api::start()?, "test_helm.py")
}

#[test]
#[ignore = "needs the JavaScript client and the binary: cargo xtask test"]
fn javascript_client() -> Result<()> {
    let api = Api::start()?;
    // Modules are resolved relative to the script.
    let script = api.dir().join("client.test.mjs");
    std::fs::copy(sources("javascript").join("client.test.mjs"), &script)
        .context("cannot copy the script")?;
    std::os::unix::fs::symlink(client_path("HAWSER_CLIENT_NODE_MODULES")?, api.dir().join("node_modules"))
        .context("cannot link the modules")?;
    let mut command = Command::new("node");
    command.arg("--test-reporter=spec").arg("--test").arg(&script).current_dir(api.dir());
    let said = passes(&api, &mut command)?;
    ensure!(said.contains("fail 0") && !said.contains("pass 0"), "{said}");
    api.stop()
}
