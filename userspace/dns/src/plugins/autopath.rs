//! The plugin `autopath`: a name with the first domain of the client's search list is looked up in all of them, so
//! that the client asks once.

use std::path::PathBuf;

use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{RData, Record};

use super::response::question_name;
use super::{Asked, Response, zone_of};
use crate::limits;
use crate::name::Name;
use crate::syntax::{Directive, LineError, wrong, zones};

/// The plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autopath {
    zones: Vec<Name>,
    /// A file with a line `search`; `None` for the list of the pod that asks, with the lines of the node's file behind.
    file: Option<PathBuf>,
    /// The domains of the file.
    search: Vec<Name>,
}

/// The file with the node's search list.
const RESOLVERS: &str = "/etc/resolv.conf";

impl Autopath {
    pub fn parse(plugin: &Directive, block: &[Name]) -> Result<Self, LineError> {
        let words: Vec<&str> = plugin.arguments().collect();
        let Some((source, names)) = words.split_last().filter(|_| plugin.block.is_empty()) else {
            return wrong(plugin.line, "autopath: write [ZONES...] @kubernetes or [ZONES...] FILE");
        };
        let file = match source.strip_prefix('@') {
            Some("kubernetes") => None,
            Some(other) => {
                return wrong(
                    plugin.line,
                    format!("autopath: there is no plugin {other:?} with names of pods"),
                );
            }
            None => Some(PathBuf::from(source)),
        };
        Ok(Self { zones: zones(names.iter().copied(), plugin.line, block)?, file, search: Vec::new() })
    }

    /// Returns the file that the search list stands in.
    pub fn file(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| RESOLVERS.into())
    }

    /// Reads the search list.
    pub fn set_search(&mut self, text: &str) {
        let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix("search"));
        let last = lines.rfind(|rest| rest.starts_with(char::is_whitespace)).unwrap_or_default();
        let domains = last.split_whitespace().filter_map(|word| Name::parse(word).ok());
        self.search = domains.take(limits::SEARCH).collect();
    }

    /// Returns the names to look up, the first of which is the one that was asked for. Empty if that does not end with
    /// the first domain. `namespace` is that of the pod that asks, `cluster` the cluster's domain.
    pub fn names(
        &self,
        asked: &Asked,
        namespace: impl FnOnce() -> Option<Box<[u8]>>,
        cluster: &Name,
    ) -> Vec<Name> {
        let mut domains: Vec<Name> = Vec::new();
        if zone_of(&self.zones, &asked.name).is_none() {
            return Vec::new();
        }
        if self.file.is_none() {
            // Nearly all questions end here, before the pod is looked for.
            let is_in_cluster = asked.name.below(cluster).is_some();
            let Some(namespace) = is_in_cluster.then(namespace).flatten() else { return Vec::new() };
            let svc = cluster.with(b"\x03svc");
            let label = [&[namespace.len() as u8], &*namespace].concat();
            domains.extend(svc.and_then(|svc| svc.with(&label)).into_iter().chain(svc).chain([*cluster]));
        }
        domains.extend(&self.search);
        domains.push(Name::ROOT);
        let Some(base) = asked.name.below(&domains[0]).filter(|base| !base.is_empty()) else {
            return Vec::new();
        };
        domains.iter().filter_map(|domain| domain.with(base)).collect()
    }

    /// Puts an alias from the name that was asked for before the answers for another name.
    pub fn aliased(asked: &Name, mut response: Response) -> Response {
        let Some(asked) = question_name(asked) else { return response };
        let other = response.answers.iter().find(|record| record.name != asked);
        if let Some((name, ttl)) = other.map(|record| (record.name.clone(), record.ttl)) {
            response.answers.insert(0, Record::from_rdata(asked, ttl, RData::CNAME(CNAME(name))));
        }
        response
    }
}
