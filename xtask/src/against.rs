//! `cargo xtask test --against URL`: compares our API server with a kube-apiserver of the user's.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{build_ebpf, setup, shell};

#[derive(clap::Args)]
pub struct Comparison {
    /// With `--against`: a kubeconfig with an administrator's credentials for that server [default:
    /// KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", requires = "against")]
    kubeconfig: Option<PathBuf>,
    /// With `--against`: seed of the requests, to repeat those of an earlier run
    #[arg(long, requires = "against")]
    seed: Option<u64>,
    /// With `--against`: number of requests
    #[arg(long, requires = "against", default_value_t = 7000)]
    requests: usize,
    /// With `--against`: only this request of the run
    #[arg(long, requires = "against")]
    case: Option<usize>,
    /// With `--against`: write a file for every answer that differs
    #[arg(long, value_name = "FILE", requires = "against")]
    json: Option<PathBuf>,
}

/// Builds both programs and runs the comparison. Fails if too many answers differ.
pub fn run(server: &str, args: &Comparison) -> Result<()> {
    setup::run(setup::Purpose::Everything, false)?;
    build_ebpf::run()?;
    let packages = ["build", "--package", "userspace-hawser", "--package", "tests-against"];
    shell::run(shell::linting().args(packages))?;
    let built = |program: &str| shell::target_dir().join("debug").join(program);
    let mut command = Command::new(built("against"));
    command.arg(server).arg("--hawser").arg(built("hawser"));
    command.arg(format!("--requests={}", args.requests));
    let numbers = [("--seed", args.seed), ("--case", args.case.and_then(|case| u64::try_from(case).ok()))];
    for (flag, number) in numbers {
        command.args(number.map(|number| format!("{flag}={number}")));
    }
    for (flag, path) in [("--kubeconfig", &args.kubeconfig), ("--json", &args.json)] {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    shell::run(&mut command)
}
