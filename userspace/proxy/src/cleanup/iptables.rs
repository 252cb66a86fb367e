//! kube-proxy's rules in the output of `iptables-save`, and the input of `iptables-restore` that removes
//! them. Pure.
//!
//! Rules and chains of others stay, even if their names begin with `KUBE-`: the kubelet's, kube-router's. A
//! chain of kube-proxy's that somebody else's rule leads to stays, with all that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Full names of chains, of the iptables and the IPVS mode.
const CHAINS: [&str; 13] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-FORWARD",
    "KUBE-MARK-MASQ",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// Prefixes of the chains of services, endpoints and policies; a hash follows.
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SEP-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-"];

/// The rules and chains to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Input for `iptables-restore --noflush`; empty if there is nothing to remove.
    pub restore: String,
    /// Number of chains to remove.
    pub chains: usize,
    /// Number of rules to remove from the kernel's own chains.
    pub jumps: usize,
    /// Chains of kube-proxy's that others use, as `table/chain`, sorted.
    pub kept: Vec<String>,
}

/// One table of the output.
#[derive(Default)]
struct Table<'a> {
    name: &'a str,
    /// Chains by name; `true` for the kernel's own, which have a policy.
    chains: BTreeMap<&'a str, bool>,
    rules: Vec<Rule<'a>>,
}

struct Rule<'a> {
    /// The rule as it was printed, without `-A`.
    text: &'a str,
    chain: &'a str,
    /// The chain that the rule leads to, or an action.
    target: Option<&'a str>,
}

/// Parses the output of `iptables-save` for all tables.
pub fn removal(save: &str) -> Removal {
    let mut removal = Removal::default();
    for table in tables(save) {
        table.remove(&mut removal);
    }
    removal
}

fn is_kube_proxys(chain: &str) -> bool {
    CHAINS.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

fn tables(save: &str) -> Vec<Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    for line in save.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('*') {
            tables.push(Table { name, ..Table::default() });
            continue;
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(declared) = line.strip_prefix(':') {
            let mut words = declared.split(' ');
            let (name, policy) = (words.next().unwrap_or_default(), words.next());
            table.chains.insert(name, policy != Some("-"));
        } else if let Some(text) = rule_text(line) {
            let chain = text.split(' ').next().unwrap_or_default();
            table.rules.push(Rule { text, chain, target: target(text) });
        }
    }
    tables
}

/// Returns a rule without its counters and `-A`.
fn rule_text(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix('[') {
        Some(counted) => counted.split_once("] ")?.1,
        None => line,
    };
    rest.strip_prefix("-A ")
}

/// Returns the word after `-j` or `-g`, which stand outside of quotes.
fn target(text: &str) -> Option<&str> {
    let (mut quoted, mut escaped, mut start) = (false, false, 0);
    let mut previous = "";
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                let word = &text[start..at];
                if matches!(previous, "-j" | "-g" | "--jump" | "--goto") {
                    return Some(word);
                }
                previous = word;
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}

impl Table<'_> {
    fn remove(&self, removal: &mut Removal) {
        let kept = self.kept();
        let goes = |chain: &str| is_kube_proxys(chain) && !kept.contains(chain);
        let chains: Vec<_> = self.chains.keys().filter(|chain| goes(chain)).collect();
        let jumps = self.rules.iter().filter(|rule| {
            let kernels = self.chains.get(rule.chain).copied().unwrap_or(false);
            kernels && rule.target.is_some_and(is_kube_proxys)
        });
        let jumps: Vec<_> = jumps.collect();
        removal.kept.extend(kept.iter().map(|chain| format!("{}/{chain}", self.name)));
        if chains.is_empty() && jumps.is_empty() {
            return;
        }
        removal.chains += chains.len();
        removal.jumps += jumps.len();
        let text = &mut removal.restore;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "*{}", self.name);
        for chain in &chains {
            // Declaring a chain again empties it.
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for jump in &jumps {
            let _ = writeln!(text, "-D {}", jump.text);
        }
        for chain in &chains {
            let _ = writeln!(text, "-X {chain}");
        }
        let _ = writeln!(text, "COMMIT");
    }

    /// Returns the chains that a rule in somebody else's chain leads to, and all that those lead to.
    fn kept(&self) -> BTreeSet<&str> {
        let leads = |from: &dyn Fn(&str) -> bool| -> Vec<&str> {
            let rules = self.rules.iter().filter(|rule| from(rule.chain));
            rules.filter_map(|rule| rule.target).filter(|target| is_kube_proxys(target)).collect()
        };
        let others = |chain: &str| !is_kube_proxys(chain) && self.chains.get(chain) == Some(&false);
        let mut kept: BTreeSet<&str> = leads(&others).into_iter().collect();
        loop {
            let more = leads(&|chain| kept.contains(chain));
            let before = kept.len();
            kept.extend(more);
            if kept.len() == before {
                return kept;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVE: &str = r#"# Generated by iptables-save v1.8.9 on Sat Nov 21 09:00:00 2026
*filter
:INPUT ACCEPT [10:600]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [5:300]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer -j KUBE-X" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -j KUBE-ROUTER-FORWARD
-A FORWARD -s 10.0.0.0/8 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP
COMMIT
# Completed
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
[12:720] -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SVC-ERIFXISQEP7F7OF4 -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -s 10.244.0.4/32 -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
"#;

    #[test]
    fn kube_proxys_chains_and_jumps_go_and_nothing_else() {
        let removal = removal(SAVE);
        let expected = r#"*filter
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-D INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer -j KUBE-X" -j KUBE-PROXY-FIREWALL
-D FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-X KUBE-FORWARD
-X KUBE-PROXY-FIREWALL
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-D OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-X KUBE-MARK-MASQ
-X KUBE-SEP-AAAAAAAAAAAAAAAA
-X KUBE-SERVICES
-X KUBE-SVC-ERIFXISQEP7F7OF4
COMMIT
"#;
        assert_eq!(removal.restore, expected);
        assert_eq!((removal.chains, removal.jumps), (6, 4));
        assert!(removal.kept.is_empty());
    }

    #[test]
    fn chains_used_by_others_stay_with_their_dependencies() {
        let save = "*nat\n:OUTPUT ACCEPT [0:0]\n:CNI-HOSTPORT-SETMARK - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
            :KUBE-SERVICES - [0:0]\n:KUBE-SEP-B - [0:0]\n-A OUTPUT -j KUBE-SERVICES\n\
            -A CNI-HOSTPORT-SETMARK -j KUBE-SEP-B\n-A KUBE-SEP-B -j KUBE-MARK-MASQ\nCOMMIT\n";
        let removal = removal(save);
        assert_eq!(removal.kept, ["nat/KUBE-MARK-MASQ", "nat/KUBE-SEP-B"]);
        assert_eq!(
            removal.restore,
            "*nat\n:KUBE-SERVICES - [0:0]\n-D OUTPUT -j KUBE-SERVICES\n-X KUBE-SERVICES\nCOMMIT\n"
        );
    }

    #[test]
    fn without_kube_proxy_there_is_nothing_to_do() {
        assert_eq!(removal(""), Removal::default());
        let others = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n:KUBE-NWPLCY-X - [0:0]\n\
            -A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        assert_eq!(removal(others), Removal::default());
    }

    #[test]
    fn targets_are_found_outside_of_quotes() {
        assert_eq!(target(r#"A -m comment --comment "x -j Y" -g Z"#), Some("Z"));
        assert_eq!(target(r#"A -m comment --comment "say \" -j Y" -j Z --to-ports 1"#), Some("Z"));
        assert_eq!(target("A -p tcp"), None);
    }
}
