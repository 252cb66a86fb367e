//! The kernel tracks and translates connections for as long as somebody's rules have a use for it. On a
//! node where kube-proxy's are the only ones, the connections that they have translated would end with
//! them. A rule that does nothing, and asks for the tracking, holds it.

use super::{CleanupError, Leftover, run};

/// What the rule is known by.
const NAME: &str = "hawser: connections that kube-proxy translated go on";
/// The table of such a rule in nftables.
const TABLE: &str = "hawser-hold";
/// Tools of iptables whose rules are apart from the others'.
const TOOLS: [&str; 4] = ["iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"];

fn arguments(action: &'static str) -> [&'static str; 12] {
    let comment = ["-m", "comment", "--comment", NAME];
    let [a, b, c, d] = comment;
    ["--wait", "-t", "nat", action, "PREROUTING", "-m", "conntrack", "--ctstate=DNAT", a, b, c, d]
}

/// Lays such a rule beside each kind of rules that was found. To be called before they are removed;
/// doing it again changes nothing.
///
/// # Errors
/// A tool failed: what is to be held would end with the rules.
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
                // Made anew in one step, so that there is one rule.
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

/// Removes those rules, and says how many there were.
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

/// Reads what there is: to ask for one rule would make a table where there is none.
async fn is_held(tool: &str) -> Result<bool, CleanupError> {
    let save = run(&format!("{tool}-save"), &[], None).await?.unwrap_or_default();
    Ok(save.lines().any(|line| line.starts_with("-A PREROUTING ") && line.contains(NAME)))
}
