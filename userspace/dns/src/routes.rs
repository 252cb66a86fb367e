//! The rules that decide who answers a name: the cluster, or the upstreams of a zone.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tracing::error;
use userspace_daemon::metrics::Member;

use crate::cache::Cache;
use crate::corefile::{Corefile, Rule, Target};
use crate::forward::{Flights, Pool, Tls, Upstream};
use crate::hosts::Hosts;
use crate::limits;
use crate::metrics::{Metrics, ZoneMetrics};
use crate::name::Name;
use crate::plugins::{Asked, Chain};

/// Names below a zone, with their upstreams.
pub struct Route {
    pub zone: Name,
    pub except: Vec<Name>,
    pub pool: Pool,
    pub cache: Option<Arc<Cache>>,
    /// Questions that upstreams are being asked.
    pub flights: Arc<Flights>,
    pub metrics: Arc<Member<1, ZoneMetrics>>,
}

/// All rules.
pub struct Routes {
    /// The deepest zones first.
    routes: Vec<Arc<Route>>,
    /// The zones of server blocks, if one has the plugin `hosts` or a chain; else there is nothing to look up.
    blocks: Vec<Name>,
    hosts: Vec<Hosts>,
    /// The plugins that change questions and answers, by the zones of their server block.
    chains: Vec<(Vec<Name>, Arc<Chain>)>,
    /// Zones of addresses that are looked up among the cluster's.
    reverse: Vec<Name>,
    /// Zones of addresses that are forwarded if the cluster has none.
    fallthrough: Vec<Name>,
    /// The figures of names that no rule has, and of the cluster's.
    pub metrics: Arc<Member<1, ZoneMetrics>>,
}

impl Routes {
    /// Builds the rules. `read` reads a file with name servers or hosts; `own` are our own addresses, which are never
    /// upstreams. Caches of rules that stay as they were go on from `before`.
    pub fn build(
        corefile: &Corefile,
        read: &dyn Fn(&Path) -> String,
        own: &dyn Fn(SocketAddr) -> bool,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Self {
        let mut routes: Vec<Arc<Route>> = Vec::new();
        for rule in &corefile.rules {
            let addresses = addresses(rule, read, own);
            let tls = addresses.iter().any(|(_, by_tls)| *by_tls).then(|| client(rule, read)).flatten();
            let old = before.and_then(|before| before.routes.iter().find(|route| route.zone == rule.zone));
            let old_cache = old.and_then(|route| route.cache.clone());
            let cache = rule.cache.as_ref().map(|settings| {
                old_cache
                    .filter(|cache| cache.settings == *settings)
                    .unwrap_or_else(|| Arc::new(Cache::new(settings.clone())))
            });
            let upstreams = addresses.into_iter().filter_map(|(address, by_tls)| {
                let tls = if by_tls { Some(Arc::clone(tls.as_ref()?)) } else { None };
                let settings = |tls: &Option<Arc<Tls>>| tls.as_ref().map(|tls| tls.settings.clone());
                let mut known = old.into_iter().flat_map(|route| &route.pool.upstreams);
                let known = known.find(|upstream| {
                    upstream.address == address && settings(&upstream.tls) == settings(&tls)
                });
                Some(known.cloned().unwrap_or_else(|| Upstream::new(address, tls)))
            });
            routes.push(Arc::new(Route {
                zone: rule.zone,
                except: rule.except.clone(),
                pool: Pool::new(rule.pool.clone(), upstreams.collect()),
                cache,
                flights: Arc::default(),
                metrics: metrics.zones.get(&[&rule.zone.to_string()]),
            }));
        }
        routes.sort_by_key(|route| std::cmp::Reverse(route.zone.depth()));
        let cluster = corefile.cluster.as_ref();
        let hosts = corefile.hosts.iter().map(|rule| Hosts::new(rule.clone(), &read(&rule.file)));
        let chains =
            corefile.chains.iter().map(|(zones, chain)| (zones.clone(), Chain::searching(chain, read)));
        let has_blocks = !corefile.hosts.is_empty() || !corefile.chains.is_empty();
        Self {
            routes,
            blocks: if has_blocks { corefile.blocks.clone() } else { Vec::new() },
            hosts: hosts.collect(),
            chains: chains.collect(),
            reverse: cluster.map(|zone| zone.reverse.clone()).unwrap_or_default(),
            fallthrough: cluster.map(|zone| zone.fallthrough.clone()).unwrap_or_default(),
            metrics: metrics.zones.get(&["."]),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter()
    }

    /// Returns the rule of a name.
    pub fn find(&self, name: &Name) -> Option<&Arc<Route>> {
        let is_below = |zone: &Name| name.below(zone).is_some();
        self.routes.iter().find(|route| is_below(&route.zone) && !route.except.iter().any(is_below))
    }

    /// Returns the lines of `hosts` in the server block of a name.
    pub fn hosts(&self, name: &Name) -> Option<&Hosts> {
        let block = self.block(name)?;
        self.hosts.iter().find(|hosts| hosts.rule.block.contains(block))
    }

    /// Returns the plugins in the server block of a name that change questions and answers.
    pub fn chain(&self, name: &Name) -> Option<&Arc<Chain>> {
        if self.chains.is_empty() {
            return None;
        }
        let block = self.block(name)?;
        self.chains.iter().find(|(zones, _)| zones.contains(block)).map(|(_, chain)| chain)
    }

    /// Returns the code of the answer if `acl` in the server block of a name keeps the client from it. The name is one that
    /// another leads to: the target of an alias, or what plugins of another block made of a question.
    pub fn refusal(&self, asked: &Asked) -> Option<u8> {
        self.chain(&asked.name)?.refusal(asked)
    }

    /// Returns the zone of the server block of a name: the longest one.
    fn block(&self, name: &Name) -> Option<&Name> {
        let around = self.blocks.iter().filter(|zone| name.below(zone).is_some());
        around.max_by_key(|zone| zone.bytes().len())
    }

    /// Returns the zone of a name of an address that is looked up among the cluster's: the deepest one.
    pub fn reverse_zone(&self, name: &Name) -> Option<&Name> {
        let zones = self.reverse.iter().filter(|zone| name.below(zone).is_some());
        zones.max_by_key(|zone| zone.bytes().len())
    }

    /// Returns `true` if a name of an address that the cluster does not have is forwarded.
    pub fn falls_through(&self, name: &Name) -> bool {
        self.fallthrough.iter().any(|zone| name.below(zone).is_some())
    }
}

/// Returns the upstreams of a rule, and whether each is asked by TLS.
fn addresses(
    rule: &Rule,
    read: &dyn Fn(&Path) -> String,
    own: &dyn Fn(SocketAddr) -> bool,
) -> Vec<(SocketAddr, bool)> {
    let mut addresses = Vec::new();
    for target in &rule.to {
        match target {
            Target::Address(address) => addresses.push((*address, false)),
            Target::Tls(address) => addresses.push((*address, true)),
            Target::File(path) => {
                addresses.extend(name_servers(&read(path)).into_iter().map(|address| (address, false)));
            }
        }
    }
    addresses.retain(|(address, _)| !own(*address));
    addresses.truncate(limits::UPSTREAMS);
    addresses
}

/// Returns the client of a rule's upstreams by TLS. Without one they are not asked.
fn client(rule: &Rule, read: &dyn Fn(&Path) -> String) -> Option<Arc<Tls>> {
    match Tls::new(&rule.pool.tls, read) {
        Ok(tls) => Some(Arc::new(tls)),
        Err(error) => {
            let cause = &error as &dyn std::error::Error;
            error!(error = cause, zone = %rule.zone, "upstreams with tls:// are not asked");
            None
        }
    }
}

/// Returns the servers of a `resolv.conf`; other lines are passed over.
pub fn name_servers(text: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("nameserver")
            && let Some(Ok(address)) = words.next().map(|word| word.parse::<IpAddr>())
        {
            found.push((address, 53).into());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".:53 {\n kubernetes cluster.local in-addr.arpa {\n fallthrough in-addr.arpa\n }\n \
        forward . /etc/resolv.conf {\n except internal\n }\n cache\n}\nexample.org {\n forward . 192.0.2.1 192.0.2.2:54\n}\n";

    fn build(before: Option<&Routes>, servers: &str) -> Routes {
        let corefile = Corefile::parse(TEXT).unwrap();
        let read = |path: &Path| {
            if path == Path::new("/etc/resolv.conf") { servers.to_owned() } else { String::new() }
        };
        Routes::build(&corefile, &read, &|own| own.ip().is_loopback(), &Metrics::default(), before)
    }

    #[test]
    fn the_deepest_zone_of_a_name_decides() {
        let routes =
            build(None, "# x\nnameserver 192.0.2.9\nnameserver 127.0.0.1\nnameserver nothing\noptions x\n");
        let found = |text: &str| {
            let route = routes.find(&Name::parse(text).unwrap())?;
            Some(route.pool.upstreams.iter().map(|upstream| upstream.address.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(found("www.example.com"), Some(vec!["192.0.2.9:53".to_owned()]));
        assert_eq!(found("a.example.org").unwrap().len(), 2);
        assert_eq!(found("x.internal"), None, "it is an exception of the only rule");
        let name = |text| Name::parse(text).unwrap();
        assert_eq!(routes.reverse_zone(&name("1.0.0.10.in-addr.arpa")), Some(&name("in-addr.arpa")));
        assert_eq!(routes.reverse_zone(&name("ip6.arpa")), None);
        assert!(routes.falls_through(&name("1.0.0.10.in-addr.arpa")));
    }

    #[test]
    fn plugins_are_those_of_the_block_with_the_longest_zone() {
        let build = |text: &str| {
            let corefile = Corefile::parse(text).unwrap();
            Routes::build(
                &corefile,
                &|_| "search x.example".to_owned(),
                &|_| false,
                &Metrics::default(),
                None,
            )
        };
        let routes = build(". {\n any\n}\nexample {\n cache\n}\na.example b.example {\n autopath /list\n}\n");
        let chain = |text: &str| routes.chain(&Name::parse(text).unwrap());
        assert!(chain("org").is_some() && chain("x.example").is_none());
        let (a, b) = (chain("x.a.example").unwrap(), chain("b.example").unwrap());
        assert!(Arc::ptr_eq(a, b) && a.autopath.is_some());
        assert!(build(TEXT).chain(&Name::ROOT).is_none());
    }

    #[test]
    fn caches_and_upstreams_outlive_other_changes() {
        let before = build(None, "nameserver 192.0.2.9\n");
        let after = build(Some(&before), "nameserver 192.0.2.9\nnameserver 192.0.2.10\n");
        let root = |routes: &Routes| Arc::clone(routes.find(&Name::ROOT).unwrap());
        let (old, new) = (root(&before), root(&after));
        assert!(Arc::ptr_eq(old.cache.as_ref().unwrap(), new.cache.as_ref().unwrap()));
        assert!(Arc::ptr_eq(&old.pool.upstreams[0], &new.pool.upstreams[0]));
        assert_eq!(new.pool.upstreams.len(), 2);
    }
}
