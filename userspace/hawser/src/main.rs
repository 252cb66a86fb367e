//! `hawser`: arguments to typed configuration, wiring, exit codes; nothing else.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that talks to a person")]

mod api_servers;
mod apiserver;
mod apiserver_args;
mod apiserver_keys;
mod args;
mod client_authorities;
mod cluster_info;
mod cni;
mod components;
mod control_plane;
mod controllers;
mod controllers_args;
mod controllers_flags;
mod controllers_metrics;
mod credentials;
mod data_dir;
mod delegated;
mod discovery;
mod dns;
mod dns_args;
mod down;
mod etcd;
mod etcd_args;
mod handover;
mod health;
mod join;
mod join_args;
mod join_control_plane;
mod leave;
mod leave_control_plane;
mod limits;
mod local_path;
mod lock;
mod look;
mod membership;
mod network_args;
mod node;
mod node_args;
mod node_ips;
mod node_proxy;
mod probes;
mod proxy;
mod proxy_args;
mod scheduler;
mod scheduler_args;
mod scheduler_flags;
mod scheduler_metrics;
mod server_names;
mod servers;
mod store;
mod tasks;
mod token;
mod up;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use userspace_daemon::{heap, logging, tls};

use crate::args::{Command, DEFAULT_LOG, Hawser};

#[global_allocator]
static ALLOCATOR: heap::Allocator = heap::Allocator;

fn main() -> ExitCode {
    // The container runtime calls this program by the plugin's name.
    if let Some(code) = cni::run_if_called() {
        return code;
    }
    let arguments = std::env::args_os().collect::<Vec<_>>();
    let Hawser { log, command } = Hawser::parse_from(with_underscores(negative_values(arguments)));
    match run(&log, command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hawser: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Turns `--v -1` into `--v=-1`: as in the components of Kubernetes, an argument that begins with a minus and
/// a digit is the value of the flag before it. No flag begins so.
fn negative_values(arguments: Vec<OsString>) -> Vec<OsString> {
    let is_flag = |text: &str| text.len() > 2 && text.starts_with("--") && !text.contains('=');
    let is_number = |text: &str| {
        text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    let mut out: Vec<OsString> = Vec::with_capacity(arguments.len());
    for argument in arguments {
        match (out.last_mut(), argument.to_str()) {
            (Some(flag), Some(text)) if is_number(text) && flag.to_str().is_some_and(is_flag) => {
                flag.push("=");
                flag.push(text);
            }
            _ => out.push(argument),
        }
    }
    out
}

/// Accepts the spelling `--log_dir` of flags for `--log-dir`, as kube-proxy, kube-controller-manager and kube-scheduler do.
fn with_underscores(arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments
        .get(1)
        .is_none_or(|command| !["proxy", "controllers", "scheduler"].iter().any(|known| command == known))
    {
        return arguments;
    }
    arguments.into_iter().map(proxy_args::with_hyphens).collect()
}

fn run(log: &str, command: Command) -> Result<ExitCode> {
    let proxy::Logging { form, filter } = match &command {
        Command::Proxy(args) => proxy::logging(args),
        _ => proxy::Logging::default(),
    };
    let text = filter.filter(|_| log == DEFAULT_LOG).unwrap_or(log);
    logging::start(text, form).with_context(|| format!("--log {text:?} is not a filter"))?;
    tls::install().map_err(|_| anyhow::anyhow!("the TLS provider was set twice"))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if matches!(command, Command::Proxy(_)) {
        // One task does the work while another may block on the kernel: a machine with a hundred processors
        // needs no more threads.
        runtime.worker_threads(limits::PROXY_THREADS);
    }
    let runtime = runtime.enable_all().build().context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        tokio::spawn(release_start());
        let done = match command {
            Command::Store(command) => return store::run(command).await,
            Command::Up(args) => Box::pin(up::run(*args)).await,
            Command::Down(args) => down::run(args).await,
            Command::Token(command) => token::run(command).await,
            Command::Join(args) => Box::pin(join_control_plane::run(*args)).await,
            Command::Leave(args) => leave_control_plane::run(args).await,
            Command::Apiserver(args) => apiserver::run(*args).await,
            Command::Credentials(args) => credentials::run(args),
            Command::Controllers(args) => controllers::controllers(*args).await,
            Command::Scheduler(args) => scheduler::scheduler(*args).await,
            Command::Kubelet(args) => Box::pin(components::kubelet(*args)).await,
            Command::Proxy(args) => Box::pin(proxy::run(*args)).await,
            Command::Dns(args) => Box::pin(dns::run(*args)).await,
        };
        done.map(|()| ExitCode::SUCCESS)
    });
    // Running tasks are not waited for: all state that matters is on disk or in the kernel.
    runtime.shutdown_background();
    outcome
}

/// Releases the pages of the binary that only the start needed, once the start is over.
async fn release_start() {
    tokio::time::sleep(limits::STARTED).await;
    // Nobody waits for the result, and it cannot fail.
    let _ = tokio::task::spawn_blocking(heap::release_file_pages).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocators_options_reach_this_binary() {
        assert!(tikv_jemalloc_ctl::background_thread::read().unwrap());
        assert_eq!(tikv_jemalloc_ctl::opt::narenas::read().unwrap(), 4);
    }

    #[test]
    fn numbers_below_zero_are_values_and_no_flags() {
        let joined = |line: &str| {
            let words = negative_values(line.split(' ').map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(joined("hawser proxy --v -1 --x=-1 -2"), "hawser proxy --v=-1 --x=-1 -2");
        assert_eq!(joined("hawser --request-timeout -5s -- -1"), "hawser --request-timeout=-5s -- -1");
        assert_eq!(joined("hawser --a --b -c"), "hawser --a --b -c");
    }
}
