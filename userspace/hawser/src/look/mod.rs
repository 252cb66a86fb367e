//! `hawser proxy services`, `backends`, `connections`, `explain`, `top` and `events`: a look into
//! the live tables of this node.

mod events;
mod explain;
mod print;
mod rows;
mod top;

use std::path::Path;

use anyhow::{Context, Result};
use userspace_dataplane::inspect::Inspector;

use crate::args::Look;

/// Prints what is asked for.
pub async fn run(look: Look) -> Result<()> {
    match look {
        Look::Services(args) => rows::services(&args),
        Look::Backends(args) => rows::backends(&args),
        Look::Connections(args) => rows::connections(&args),
        Look::Explain(args) => explain::run(&args),
        Look::Top(args) => top::run(&args).await,
        Look::Events(args) => events::run(&args).await,
    }
}

fn open(bpf_root: &Path) -> Result<Inspector> {
    Inspector::open(bpf_root).context("cannot look into the tables")
}
