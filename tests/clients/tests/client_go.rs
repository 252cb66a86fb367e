//! client-go against `hawser apiserver`: runs the program in `go`, each of whose checks has a server of its
//! own.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests_clients::{Api, client_path, run};

fn program(api: &Api, check: &str) -> Result<Command> {
    let mut command = Command::new(client_path("HAWSER_CLIENT_GO")?);
    command.arg(check).env("KUBECONFIG", api.kubeconfig()).env("HOME", api.dir()).current_dir(api.dir());
    Ok(command)
}

fn passes(check: &str) -> Result<()> {
    let api = Api::start()?;
    let outcome = run(&mut program(&api, check)?, "")?;
    ensure!(outcome.success && outcome.stdout == "passed\n", "{}{}", outcome.stdout, outcome.stderr);
    api.stop()
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn typed_clients_in_protobuf() -> Result<()> {
    passes("typed")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn shared_informers_see_every_change() -> Result<()> {
    passes("informers")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn informers_outlive_a_restart_of_the_server() -> Result<()> {
    let mut api = Api::start()?;
    let mut child = program(&api, "restart")?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start the program")?;
    let mut output = BufReader::new(child.stdout.take().context("its output was not piped")?);
    let mut line = String::new();
    output.read_line(&mut line).context("cannot read what it says")?;
    let asked = line == "restart the server\n";
    if asked {
        api = api.restart()?;
    }
    // The program gives up at the end of its input.
    let mut input = child.stdin.take().context("its input was not piped")?;
    input.write_all(if asked { b"done\n" } else { b"" }).context("cannot answer it")?;
    drop(input);
    output.read_to_string(&mut line).context("cannot read what it says")?;
    let status = child.wait().context("cannot wait for it")?;
    ensure!(asked && status.success() && line.ends_with("passed\n"), "{status}: {line}");
    api.stop()
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn watches_until_something_holds() -> Result<()> {
    passes("watches")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn lists_in_pages() -> Result<()> {
    passes("pages")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn dynamic_and_metadata_clients() -> Result<()> {
    passes("dynamic")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn discovery_mappers_and_openapi() -> Result<()> {
    passes("discovery")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn apply_by_generated_types() -> Result<()> {
    passes("apply")
}

#[test]
#[ignore = "needs the Go client and the binary: cargo xtask test"]
fn leaders_are_elected() -> Result<()> {
    passes("election")
}
