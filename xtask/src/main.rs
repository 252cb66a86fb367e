//! The entry point for people and CI: `cargo xtask COMMAND`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that talks to a person")]

mod against;
mod apt;
mod bench;
mod build_ebpf;
mod clients;
mod conformance;
mod deny;
mod encoded;
mod fuzz;
mod image;
mod kernel;
mod schema;
mod security;
mod setup;
mod shell;
mod status;
mod suite;
mod test;
mod tidy;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, run, test and measure Hawser")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find or install what building, running and testing needs
    Setup {
        /// Only report what is missing; change nothing
        #[arg(long)]
        check: bool,
    },
    /// Compile the eBPF programs
    BuildEbpf,
    /// Set up what is missing, build, and run a cluster in the foreground
    Up(up::Args),
    /// Set up what is missing and run everything that CI runs
    Test(test::Args),
    /// Run the benchmarks; see docs/benchmarks.md
    Bench(bench::Args),
    /// Write the OCI image archives: pause, the test workload, hawser
    Image {
        /// Only these images
        images: Vec<image::Image>,
    },
    /// Write the definitions of the API anew from the OpenAPI documents of a kube-apiserver
    Schema(schema::Args),
    /// Check the house rules: dependencies, lengths, comments, lints
    Tidy,
    /// Check the dependencies' licences, sources, duplicates and published vulnerabilities
    Deny,
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Setup { check } => setup::run(setup::Purpose::Everything, check),
        Command::BuildEbpf => build_ebpf::run().map(|object| println!("{}", object.display())),
        Command::Up(args) => up::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Image { images } => image::run(&images).map(|archives| {
            for archive in archives {
                println!("{}", archive.display());
            }
        }),
        Command::Schema(args) => schema::run(&args),
        Command::Tidy => tidy::run(),
        Command::Deny => deny::run(),
    }
}
