//! Finds and removes what kube-proxy left in the kernel. Uses the tools that created it, as far as they are
//! installed; doing it again changes nothing.

mod hold;
pub mod iptables;
pub mod ipvs;

use std::io;
use std::process::Stdio;

use futures::TryStreamExt;
use ipnetwork::IpNetwork;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::limits;

pub use self::hold::{hold, release};

/// The tables of kube-proxy's nftables mode, by family.
const NFTABLES: [&str; 2] = ["ip", "ip6"];
const NFTABLES_NAME: &str = "kube-proxy";

/// A place where kube-proxy's rules can be, and what was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Rules that the tool of this name restores.
    IpTables { tool: String, removal: iptables::Removal },
    /// An nftables table.
    NfTables { family: &'static str },
    /// Virtual servers of IPVS, as arguments of `ipvsadm`.
    Ipvs { servers: Vec<Vec<String>> },
    /// The interface of the IPVS mode, by its index.
    Interface { index: u32 },
    /// Sets of addresses of the IPVS mode.
    Sets { names: Vec<String> },
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IpTables { tool, removal } => {
                write!(f, "{} chains and {} rules of {tool}", removal.chains, removal.jumps)
            }
            Self::NfTables { family } => write!(f, "the nftables table {family} {NFTABLES_NAME}"),
            Self::Ipvs { servers } => write!(f, "{} virtual servers of IPVS", servers.len()),
            Self::Interface { .. } => write!(f, "the interface {}", ipvs::INTERFACE),
            Self::Sets { names } => write!(f, "{} IP sets", names.len()),
        }
    }
}

/// An error of looking or removing; the other places were still processed.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    #[error("cannot run {tool}")]
    Run {
        tool: String,
        #[source]
        cause: io::Error,
    },
    #[error("{tool} failed: {said}")]
    Failed { tool: String, said: String },
    #[error("{tool} did not end within {} seconds", limits::TOOL_TIMEOUT.as_secs())]
    Slow { tool: String },
    #[error("cannot remove the interface {}", ipvs::INTERFACE)]
    Interface(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Searches all places. Virtual servers in `excluded` ranges are not kube-proxy's. A tool that is not
/// installed finds nothing.
pub async fn find(excluded: &[IpNetwork]) -> (Vec<Leftover>, Vec<CleanupError>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for backend in ["legacy", "nft"] {
        for family in ["iptables", "ip6tables"] {
            match find_iptables(family, backend).await {
                Ok(leftover) => found.extend(leftover),
                Err(error) => errors.push(error),
            }
        }
    }
    match run("nft", &["list", "tables"], None).await {
        Ok(tables) => {
            let tables = tables.unwrap_or_default();
            let there = |family: &&&str| {
                tables.lines().any(|line| line.trim() == format!("table {family} {NFTABLES_NAME}"))
            };
            found.extend(NFTABLES.iter().filter(there).map(|family| Leftover::NfTables { family }));
        }
        Err(error) => errors.push(error),
    }
    let (leftovers, failed) = find_ipvs(excluded).await;
    found.extend(leftovers);
    errors.extend(failed);
    (found, errors)
}

async fn find_iptables(family: &str, backend: &str) -> Result<Option<Leftover>, CleanupError> {
    let mut restore = format!("{family}-{backend}-restore");
    let mut save = run(&format!("{family}-{backend}-save"), &[], None).await?;
    if save.is_none() && backend == "legacy" {
        // If there is only one backend, its tools have the plain names.
        restore = format!("{family}-restore");
        save = run(&format!("{family}-save"), &[], None).await?;
    }
    let removal = iptables::removal(&save.unwrap_or_default());
    Ok((!removal.restore.is_empty()).then_some(Leftover::IpTables { tool: restore, removal }))
}

/// Returns what was found, even if a tool failed.
async fn find_ipvs(excluded: &[IpNetwork]) -> (Vec<Leftover>, Option<CleanupError>) {
    let (mut found, mut failed) = (Vec::new(), None);
    if let Some(index) = interface().await {
        let save = run("ipvsadm", &["--save", "--numeric"], None).await.unwrap_or_else(|error| {
            failed = Some(error);
            None
        });
        let servers = ipvs::virtual_servers(&save.unwrap_or_default(), excluded);
        if !servers.is_empty() {
            found.push(Leftover::Ipvs { servers });
        }
        found.push(Leftover::Interface { index });
    }
    // Sets come last, because rules that use a set hold it.
    let names = run("ipset", &["list", "-n"], None).await.ok().flatten().unwrap_or_default();
    let names: Vec<_> = ipvs::sets(&names).into_iter().map(str::to_owned).collect();
    if !names.is_empty() {
        found.push(Leftover::Sets { names });
    }
    (found, failed)
}

/// Removes one of the results of [`find`].
///
/// # Errors
/// Fails if a tool fails; the error contains its output.
pub async fn remove(leftover: &Leftover) -> Result<(), CleanupError> {
    match leftover {
        Leftover::IpTables { tool, removal } => {
            // Others that are changing rules hold the lock of the legacy tools.
            let mut arguments = vec!["--noflush"];
            if !tool.contains("nft") {
                arguments.extend(["--wait", "30"]);
            }
            run(tool, &arguments, Some(&removal.restore)).await?;
        }
        Leftover::NfTables { family } => {
            run("nft", &["delete", "table", family, NFTABLES_NAME], None).await?;
        }
        Leftover::Ipvs { servers } => {
            for server in servers {
                let arguments: Vec<_> = server.iter().map(String::as_str).collect();
                run("ipvsadm", &arguments, None).await?;
            }
        }
        Leftover::Interface { index } => {
            let (socket, handle, _) =
                rtnetlink::new_connection().map_err(|cause| CleanupError::Interface(cause.into()))?;
            let driver = tokio::spawn(socket);
            let deleted = handle.link().del(*index).execute().await;
            driver.abort();
            deleted.map_err(|cause| CleanupError::Interface(cause.into()))?;
        }
        Leftover::Sets { names } => {
            for name in names {
                run("ipset", &["destroy", name], None).await?;
            }
        }
    }
    Ok(())
}

/// Returns the index of the interface of the IPVS mode.
async fn interface() -> Option<u32> {
    let (socket, handle, _) = rtnetlink::new_connection().ok()?;
    let driver = tokio::spawn(socket);
    let name = ipvs::INTERFACE.to_owned();
    // The kernel answers with an error if there is none.
    let found = handle.link().get().match_name(name).execute().try_next().await.ok().flatten();
    driver.abort();
    found.map(|message| message.header.index)
}

/// Runs a tool and returns its output; `None` if it is not installed.
async fn run(tool: &str, arguments: &[&str], input: Option<&str>) -> Result<Option<String>, CleanupError> {
    let fail = |cause| CleanupError::Run { tool: tool.to_owned(), cause };
    let mut command = Command::new(tool);
    command.args(arguments).stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    #[expect(clippy::disallowed_methods, reason = "where programs are is said there alone")]
    if std::env::var_os("PATH").is_none_or(|path| path.is_empty()) {
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    }
    let mut child = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(fail)?,
    };
    let stdin = child.stdin.take();
    let work = async {
        let feed = async {
            if let (Some(mut stdin), Some(text)) = (stdin, input) {
                // A tool that ends early reports the reason itself.
                let _ = stdin.write_all(text.as_bytes()).await;
            }
        };
        tokio::join!(feed, child.wait_with_output()).1
    };
    let output = tokio::time::timeout(limits::TOOL_TIMEOUT, work)
        .await
        .map_err(|_| CleanupError::Slow { tool: tool.to_owned() })?
        .map_err(fail)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(CleanupError::Failed { tool: tool.to_owned(), said });
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}
