//! Keeps translated connections alive while kube-proxy's rules are removed. The kernel tracks and translates
//! connections only while some rule uses that. On a node where kube-proxy's rules are the only ones, the
//! connections that they translated would end with them; a rule that does nothing but use connection tracking
//! keeps them.

use super::{CleanupError, Leftover, run};

/// The name of the rule.
const NAME: &str = "hawser: connections that kube-proxy translated go on";
/// The nftables table of the rule.
const TABLE: &str = "hawser-hold";
/// The iptables tools whose rules are independent of each other's.
const TOOLS: [&str; 4] = ["iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"];

fn arguments(action: &'static str) -> [&'static str; 12] {
    let comment = ["-m", "comment", "--comment", NAME];
    let [a, b, c, d] = comment;
    ["--wait", "-t", "nat", action, "PREROUTING", "-m", "conntrack", "--ctstate=DNAT", a, b, c, d]
}

/// Adds such a rule for each kind of rules that was found. Call it before those are removed; calling it again
/// changes nothing.
///
/// # Errors
/// Fails if a tool fails: the connections would end with the rules.
pub async fn hold(found: &[Leftover]) -> Result<(), CleanupError> {
    for leftover in found {
        match leftover {
            Leftover::IpTables { tool, .. } => {
                let tool = tool.trim_end_matches("-restore");
                if !is_held(tool).await? {
                    run(tool, &arguments("-A"), None).await?;
                }
            }
            Leftover::NfTables { family } => {
                // Replaced in one step, so that there is exactly one rule.
                let text = format!(
                    "table {family} {TABLE} {{ }}\ndelete table {family} {TABLE}\n\
                     table {family} {TABLE} {{\n chain prerouting {{\n\
                     type nat hook prerouting priority -100; policy accept;\nct status dnat\n}}\n}}\n"
                );
                run("nft", &["-f", "-"], Some(&text)).await?;
            }
            Leftover::Ipvs { .. } | Leftover::Interface { .. } | Leftover::Sets { .. } => {}
        }
    }
    Ok(())
}

/// Removes those rules; returns their number and the errors.
pub async fn release() -> (usize, Vec<CleanupError>) {
    let (mut released, mut errors) = (0, Vec::new());
    for tool in TOOLS.into_iter().chain(["iptables", "ip6tables"]) {
        match drop_from(tool).await {
            Ok(count) => released += count,
            Err(error) => errors.push(error),
        }
    }
    let tables = run("nft", &["list", "tables"], None).await.ok().flatten().unwrap_or_default();
    for family in super::NFTABLES {
        if tables.lines().any(|line| line.trim() == format!("table {family} {TABLE}")) {
            match run("nft", &["delete", "table", family, TABLE], None).await {
                Ok(_) => released += 1,
                Err(error) => errors.push(error),
            }
        }
    }
    (released, errors)
}

async fn drop_from(tool: &str) -> Result<usize, CleanupError> {
    let mut count = 0;
    while is_held(tool).await? {
        run(tool, &arguments("-D"), None).await?;
        count += 1;
    }
    Ok(count)
}

/// Reads the existing rules: a query for a single rule would create a table where there is none.
async fn is_held(tool: &str) -> Result<bool, CleanupError> {
    let save = run(&format!("{tool}-save"), &[], None).await?.unwrap_or_default();
    Ok(save.lines().any(|line| line.starts_with("-A PREROUTING ") && line.contains(NAME)))
}
