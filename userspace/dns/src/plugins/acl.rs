//! The plugin `acl`: questions that are refused by their client and type.

use ipnetwork::IpNetwork;

use super::{Asked, kind, zone_of};
use crate::name::Name;
use crate::syntax::{Directive, LineError, wrong, zones};

/// The outcome for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    /// REFUSED.
    Block,
    /// An answer without records.
    Filter,
    /// No answer.
    Drop,
}

/// One line with its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    zones: Vec<Name>,
    policies: Vec<Policy>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    action: Action,
    /// All types if empty.
    kinds: Vec<u16>,
    /// All clients if `None`.
    clients: Option<Vec<IpNetwork>>,
}

impl Rule {
    pub fn parse(plugin: &Directive, block: &[Name]) -> Result<Self, LineError> {
        let zones = zones(plugin.arguments(), plugin.line, block)?;
        Ok(Self { zones, policies: plugin.block.iter().map(policy).collect::<Result<_, _>>()? })
    }

    /// Returns the action of the first line that a question matches.
    pub fn decide(&self, asked: &Asked) -> Option<Action> {
        zone_of(&self.zones, &asked.name)?;
        let matching = |policy: &&Policy| {
            let has_client = |all: &Vec<IpNetwork>| {
                all.iter().any(|network| network.contains(asked.client.to_canonical()))
            };
            (policy.kinds.is_empty() || policy.kinds.contains(&asked.kind))
                && policy.clients.as_ref().is_none_or(has_client)
        };
        self.policies.iter().find(matching).map(|policy| policy.action)
    }
}

fn policy(option: &Directive) -> Result<Policy, LineError> {
    let action = match option.name() {
        "allow" => Action::Allow,
        "block" => Action::Block,
        "filter" => Action::Filter,
        "drop" => Action::Drop,
        other => {
            return wrong(option.line, format!("acl: {other:?} is not allow, block, filter or drop"));
        }
    };
    let mut policy = Policy { action, kinds: Vec::new(), clients: None };
    let (mut section, mut all_kinds, mut all_clients) = ("", false, false);
    let mut empty = false;
    for word in option.arguments() {
        match (section, word) {
            (_, "type" | "net") => {
                if empty {
                    break;
                }
                (section, empty) = (word, true);
                continue;
            }
            ("type", "*") => all_kinds = true,
            ("type", word) => policy.kinds.push(kind(word, option)?),
            ("net", "*") => all_clients = true,
            ("net", word) => match word.parse::<IpNetwork>() {
                Ok(network) => policy.clients.get_or_insert_default().push(network),
                Err(_) => return wrong(option.line, format!("acl: {word:?} is not an address or a range")),
            },
            _ => return wrong(option.line, "acl: write ACTION [type TYPES...] [net RANGES...]"),
        }
        empty = false;
    }
    if empty {
        return wrong(option.line, format!("acl: nothing stands behind {section:?}"));
    }
    if all_kinds {
        policy.kinds.clear();
    }
    if all_clients {
        policy.clients = None;
    }
    Ok(policy)
}
