//! `hawser`: arguments to typed configuration, wiring, exit codes; nothing else.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that talks to a person")]

mod apiserver;
mod args;
mod cni;
mod components;
mod credentials;
mod data_dir;
mod down;
mod look;
mod node;
mod shutdown;
mod up;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Command, Hawser};

fn main() -> ExitCode {
    // The container runtime calls this program by the plugin's name.
    if let Some(code) = cni::run_if_called() {
        return code;
    }
    let Hawser { log, command } = Hawser::parse();
    match run(&log, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hawser: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(log: &str, command: Command) -> Result<()> {
    let filter = EnvFilter::try_new(log).with_context(|| format!("--log {log:?} is not a filter"))?;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    // Everything that speaks TLS in this process uses the same cryptography.
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS provider was set twice"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Up(args) => Box::pin(up::run(*args)).await,
            Command::Down(args) => down::run(args).await,
            Command::Apiserver(args) => apiserver::run(*args).await,
            Command::Credentials(args) => credentials::run(args),
            Command::Controllers(args) => components::controllers(args).await,
            Command::Scheduler(args) => components::scheduler(args).await,
            Command::Kubelet(args) => Box::pin(components::kubelet(*args)).await,
            Command::Proxy(args) => components::proxy(*args).await,
        }
    });
    // What still runs is not waited for: everything that counts is on disk or in the kernel.
    runtime.shutdown_background();
    outcome
}
