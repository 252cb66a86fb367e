//! `hawser proxy services`, `backends`, `connections`, `explain`, `top`, `events` and `trace`: a look into
//! the live tables and programs of this node.

mod events;
mod explain;
mod print;
mod rows;
mod top;
mod trace;

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use userspace_dataplane::inspect::Inspector;

use crate::args::{Look, RowArgs};
use crate::limits;

/// Prints the requested view.
pub async fn run(look: Look) -> Result<()> {
    let outcome = match look {
        Look::Services(args) => rows::services(&args),
        Look::Backends(args) => rows::backends(&args),
        Look::Connections(args) => rows::connections(&args),
        Look::Explain(args) => explain::run(&args),
        Look::Top(args) => top::run(&args).await,
        Look::Events(args) => events::run(&args).await,
        Look::Trace(args) => trace::run(&args).await,
    };
    outcome.map_err(advised)
}

fn open(bpf_root: &Path) -> Result<Inspector> {
    Inspector::open(bpf_root).context("cannot open the tables")
}

/// Adds advice to an error, where there is some.
fn advised(error: anyhow::Error) -> anyhow::Error {
    let kinds = || error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).map(|e| e.kind());
    if kinds().any(|kind| kind == ErrorKind::PermissionDenied) {
        return error.context("run it as root: the tables are the kernel's");
    }
    if kinds().any(|kind| kind == ErrorKind::NotFound) {
        return error
            .context("a table has gone while it was looked for (is the proxy being replaced?); try again");
    }
    error
}

/// Fails if no service has this name; a service may have no rows to show.
fn known(inspector: &Inspector, args: &RowArgs) -> Result<()> {
    let Some(wanted) = &args.service else { return Ok(()) };
    let names = inspector.service_names().context("cannot read the names of services")?;
    if !names.iter().any(|name| args.wants(name)) {
        bail!("{}", unknown(wanted, &names));
    }
    Ok(())
}

/// Returns the error for a service that does not exist, with similar names.
fn unknown(wanted: &str, names: &[String]) -> String {
    let bare = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let wanted_name = bare(wanted);
    let near = |name: &&String| {
        let name = bare(name);
        name == wanted_name || (!wanted_name.is_empty() && name.contains(&wanted_name))
    };
    let near: Vec<&str> = names.iter().filter(near).map(String::as_str).take(limits::SIMILAR_NAMES).collect();
    let mut text = format!("no service {wanted:?} is in the tables of this node");
    if near.is_empty() {
        text += "; `hawser proxy services` lists those that are. Headless services, and those of type \
                 ExternalName, have no place in them";
    } else {
        text += &format!(". There is {}", near.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_begins_with_the_advice() {
        let failed = |kind: ErrorKind| {
            let error = anyhow::Error::new(std::io::Error::from(kind)).context("reading map FLOWS4");
            format!("{:#}", advised(error))
        };
        let text = failed(ErrorKind::PermissionDenied);
        assert!(text.starts_with("run it as root") && text.contains("reading map FLOWS4"), "{text}");
        assert!(failed(ErrorKind::NotFound).contains("try again"));
        assert!(failed(ErrorKind::InvalidData).starts_with("reading map"));
    }

    #[test]
    fn a_service_that_is_not_there_is_told_from_those_that_are() {
        let names = ["default/web".to_owned(), "shop/web-cart".to_owned(), "shop/db".to_owned()];
        let text = unknown("test/web", &names);
        assert!(text.ends_with("There is default/web, shop/web-cart"), "{text}");
        assert!(unknown("nothing", &names).contains("`hawser proxy services` lists"));
    }
}
