//! The configuration file: the part of CoreDNS' Corefile that this server has. What it does not have is
//! refused with its line, never passed over.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::duration;

use crate::cache::{CacheSettings, Prefetch, Stale};
use crate::cluster::PodMode;
use crate::forward::{Policy, PoolSettings};
use crate::hosts::{self, HostsRule};
use crate::imports;
use crate::limits;
use crate::name::Name;
use crate::plugins::Chain;
use crate::syntax::{
    self, Directive, Find, Imported, Line, LineError, SyntaxError, fallthrough, name, wrong,
};

/// The ports of DNS, and of DNS by TLS.
const PORT: u16 = 53;
const TLS_PORT: u16 = 853;

/// The configuration that is used without a file, as kubeadm's for CoreDNS.
pub const DEFAULT: &str = "\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
        max_concurrent 1000
    }
    cache 30 {
        prefetch 10 1m 10%
        serve_stale 1h verify
    }
    loop
    reload
    loadbalance
}
";

/// A configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Corefile {
    pub cluster: Option<ClusterZone>,
    pub rules: Vec<Rule>,
    pub hosts: Vec<HostsRule>,
    /// The plugins of server blocks that change questions and answers, with the zones of the block.
    pub chains: Vec<(Vec<Name>, Arc<Chain>)>,
    /// The zones of all server blocks.
    pub blocks: Vec<Name>,
    /// Look for upstreams that lead back to us.
    pub find_loops: bool,
}

/// The zone of the plugin `kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterZone {
    /// The cluster's domain; `None` for the one that the command line names.
    pub domain: Option<Name>,
    /// Names of addresses below these are looked up among the cluster's.
    pub reverse: Vec<Name>,
    pub pods: PodMode,
    pub ttl: u32,
    /// Names of addresses below these are forwarded if the cluster has none.
    pub fallthrough: Vec<Name>,
}

/// Names below a zone are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub zone: Name,
    pub except: Vec<Name>,
    pub to: Vec<Target>,
    pub pool: PoolSettings,
    pub cache: Option<CacheSettings>,
}

/// The place of upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Address(SocketAddr),
    /// One that is asked by TLS.
    Tls(SocketAddr),
    /// A file with `nameserver` lines.
    File(PathBuf),
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorefileError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error(transparent)]
    Line(#[from] LineError),
    #[error("in the imported file {file}: {cause}")]
    Imported { file: String, cause: Box<Self> },
}

impl CorefileError {
    /// Names the file of the line, if that is an imported one.
    fn located(self, imported: &Imported) -> Self {
        let line = match &self {
            Self::Syntax(error) => error.line(),
            Self::Line(error) => error.line,
            Self::Imported { .. } => return self,
        };
        match line.file.checked_sub(1).and_then(|at| imported.get(at)) {
            Some((file, _)) => Self::Imported { file: file.clone(), cause: Box::new(self) },
            None => self,
        }
    }
}

impl Corefile {
    /// Parses a file that imports no others.
    pub fn parse(text: &str) -> Result<Self, CorefileError> {
        Self::build(text, &|_| Err("files are not read here".to_owned()), &mut Vec::new())
    }

    /// Parses the text of a file in a directory, with the files that it imports. Returns it with all their texts.
    pub fn load(
        text: &str,
        directory: &Path,
        read: &dyn Fn(&Path) -> std::io::Result<String>,
    ) -> Result<(Self, String), CorefileError> {
        let mut imported = Vec::new();
        let corefile = Self::build(text, &|pattern| imports::find(directory, pattern, read), &mut imported);
        let corefile = corefile.map_err(|error| error.located(&imported))?;
        let files = imported.iter().flat_map(|(path, text)| [&**path, text]);
        Ok((corefile, std::iter::once(text).chain(files).collect::<Vec<_>>().join("\0")))
    }

    fn build(text: &str, find: Find<'_>, imported: &mut Imported) -> Result<Self, CorefileError> {
        let mut corefile = Self {
            cluster: None,
            rules: Vec::new(),
            hosts: Vec::new(),
            chains: Vec::new(),
            blocks: Vec::new(),
            find_loops: false,
        };
        for block in syntax::parse(text, find, imported)? {
            corefile.add_block(&block)?;
        }
        let mut zones: Vec<String> = corefile.rules.iter().map(|rule| rule.zone.to_string()).collect();
        zones.sort();
        if let Some(pair) = zones.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(
                Line::FIRST,
                format!("the zone {} is forwarded twice: write one `forward` a zone", pair[0]),
            );
        }
        Ok(corefile)
    }

    fn add_block(&mut self, block: &Directive) -> Result<(), CorefileError> {
        let zones: Vec<Name> = block
            .words
            .iter()
            .flat_map(|word| word.split(','))
            .filter(|key| !key.is_empty())
            .map(|key| server_zone(key, block.line))
            .collect::<Result<_, _>>()?;
        self.blocks.extend(&zones);
        let cache = block.block.iter().find(|plugin| plugin.name() == "cache").map(cache).transpose()?;
        let mut chain = Chain::default();
        for plugin in &block.block {
            if chain.add(plugin, &zones)? {
                continue;
            }
            match plugin.name() {
                "forward" => {
                    for zone in &zones {
                        self.rules.push(Rule { cache: cache.clone(), ..forward(plugin, zone)? });
                    }
                }
                "kubernetes" if self.cluster.is_none() => self.cluster = Some(kubernetes(plugin)?),
                "kubernetes" => {
                    return wrong(plugin.line, "`kubernetes` stands twice: one cluster is served");
                }
                "hosts" if self.hosts.iter().any(|rule| rule.block == zones) => {
                    return wrong(plugin.line, "`hosts` stands twice in a block");
                }
                "hosts" => self.hosts.push(hosts(plugin, &zones)?),
                "loop" => self.find_loops = true,
                // These are always on, or given by flags: pages, logs of errors, order of addresses.
                "cache" | "errors" | "health" | "ready" | "prometheus" | "reload" | "loadbalance"
                | "cancel" | "bufsize" | "log" => {}
                other => {
                    return wrong(
                        plugin.line,
                        format!(
                            "the plugin {other:?} is not supported: there are kubernetes, hosts, forward, cache, loop, rewrite, template, autopath, acl, dns64, local, any and minimal"
                        ),
                    );
                }
            }
        }
        if !chain.is_empty() {
            self.chains.push((zones, Arc::new(chain)));
        }
        Ok(())
    }
}

/// Returns the zone of a server block: `ZONE`, `ZONE:53`, `dns://ZONE:53`.
fn server_zone(key: &str, line: Line) -> Result<Name, LineError> {
    let key = match key.split_once("://") {
        Some(("dns", rest)) => rest,
        Some((scheme, _)) => return wrong(line, format!("{scheme}:// is not supported: only dns://")),
        None => key,
    };
    match key.rsplit_once(':') {
        Some((zone, "53")) => name(zone, line),
        Some((_, port)) => {
            wrong(line, format!("port {port:?}: all zones are served on one port; write :53 or nothing"))
        }
        None => name(key, line),
    }
}

fn kubernetes(plugin: &Directive) -> Result<ClusterZone, CorefileError> {
    let mut zone = ClusterZone {
        domain: None,
        reverse: Vec::new(),
        pods: PodMode::Disabled,
        ttl: 5,
        fallthrough: Vec::new(),
    };
    for word in plugin.arguments() {
        let found = name(word, plugin.line)?;
        if is_reverse(&found) {
            zone.reverse.push(found);
        } else if zone.domain.replace(found).is_some() {
            return wrong(plugin.line, "one domain of the cluster is served, and in-addr.arpa and ip6.arpa");
        }
    }
    for option in &plugin.block {
        let arguments: Vec<&str> = option.arguments().collect();
        match (option.name(), &*arguments) {
            ("pods", ["disabled"]) => zone.pods = PodMode::Disabled,
            ("pods", ["insecure"]) => zone.pods = PodMode::Insecure,
            ("pods", ["verified"]) => zone.pods = PodMode::Verified,
            ("ttl", [seconds]) => {
                zone.ttl = number(seconds, 0..=3600, option.line)?;
            }
            ("fallthrough", zones) => zone.fallthrough.extend(fallthrough(zones, option.line)?),
            (other, _) => {
                return wrong(
                    option.line,
                    format!(
                        "kubernetes: {other:?} with these arguments is not supported: there are pods disabled|insecure|verified, ttl SECONDS, fallthrough [ZONES]"
                    ),
                );
            }
        }
    }
    Ok(zone)
}

fn hosts(plugin: &Directive, block: &[Name]) -> Result<HostsRule, CorefileError> {
    let mut arguments = plugin.arguments();
    let mut rule = HostsRule {
        block: block.to_vec(),
        file: arguments.next().unwrap_or(hosts::FILE).into(),
        zones: syntax::zones(arguments, plugin.line, block)?,
        inline: String::new(),
        ttl: hosts::TTL,
        reverse: true,
        fallthrough: Vec::new(),
    };
    for option in &plugin.block {
        let arguments: Vec<&str> = option.arguments().collect();
        match (option.name(), &*arguments) {
            (address, [_, ..]) if address.parse::<IpAddr>().is_ok() => {
                rule.inline.push_str(&option.words.join(" "));
                rule.inline.push('\n');
            }
            ("ttl", [seconds]) => rule.ttl = number(seconds, 1..=65_535, option.line)?,
            ("no_reverse", []) => rule.reverse = false,
            ("fallthrough", zones) => rule.fallthrough.extend(fallthrough(zones, option.line)?),
            // The file is read again with the configuration.
            ("reload", [time]) => drop(duration(time, option.line)?),
            (other, _) => {
                return wrong(
                    option.line,
                    format!(
                        "hosts: {other:?} with these arguments is not supported: there are ADDRESS NAMES, ttl SECONDS, no_reverse, reload DURATION, fallthrough [ZONES]"
                    ),
                );
            }
        }
    }
    Ok(rule)
}

fn is_reverse(zone: &Name) -> bool {
    ["in-addr.arpa", "ip6.arpa"]
        .iter()
        .any(|text| Name::parse(text).is_ok_and(|all| zone.below(&all).is_some()))
}

fn forward(plugin: &Directive, zone: &Name) -> Result<Rule, CorefileError> {
    let mut arguments = plugin.arguments();
    let Some(from) = arguments.next() else { return wrong(plugin.line, "forward: write FROM TO...") };
    let from = name(from, plugin.line)?;
    // A rule is no wider than the block that it stands in.
    let zone = if from.below(zone).is_some() {
        from
    } else if zone.below(&from).is_some() {
        *zone
    } else {
        return wrong(plugin.line, format!("forward: {from} is not below {zone}, the zone of the block"));
    };
    let to: Vec<Target> = arguments.map(|text| target(text, plugin.line)).collect::<Result<_, _>>()?;
    if to.is_empty() || to.len() > limits::UPSTREAMS {
        return wrong(plugin.line, format!("forward: name between 1 and {} upstreams", limits::UPSTREAMS));
    }
    let mut rule = Rule { zone, except: Vec::new(), to, pool: PoolSettings::default(), cache: None };
    for option in &plugin.block {
        let arguments: Vec<&str> = option.arguments().collect();
        match (option.name(), &*arguments) {
            ("except", names) if !names.is_empty() => {
                for word in names {
                    rule.except.push(name(word, option.line)?);
                }
            }
            ("force_tcp", []) => rule.pool.force_tcp = true,
            ("prefer_udp" | "tls", []) => {}
            ("tls", [file]) => rule.pool.tls.authorities = Some(file.into()),
            ("tls_servername", [name]) => rule.pool.tls.server_name = Some((*name).to_owned()),
            ("max_fails", [count]) => rule.pool.max_fails = number(count, 0..=u32::MAX, option.line)?,
            ("max_concurrent", [count]) => {
                rule.pool.max_concurrent = number(count, 0..=u32::MAX, option.line)? as usize;
            }
            ("policy", ["random"]) => rule.pool.policy = Policy::Random,
            ("policy", ["round_robin"]) => rule.pool.policy = Policy::RoundRobin,
            ("policy", ["sequential"]) => rule.pool.policy = Policy::Sequential,
            // Connections are not kept, and upstreams are judged by the questions that they get.
            ("expire" | "health_check", [_, ..]) => {}
            (other, _) => {
                return wrong(
                    option.line,
                    format!(
                        "forward: {other:?} with these arguments is not supported: there are except NAMES, force_tcp, prefer_udp, tls [AUTHORITIES], tls_servername NAME, max_fails N, max_concurrent N, policy random|round_robin|sequential, expire, health_check"
                    ),
                );
            }
        }
    }
    Ok(rule)
}

fn target(text: &str, line: Line) -> Result<Target, CorefileError> {
    let (text, by_tls) = match text.split_once("://") {
        Some(("dns", rest)) => (rest, false),
        Some(("tls", rest)) => (rest, true),
        Some((scheme, _)) => {
            return wrong(line, format!("forward: {scheme}:// is not supported: only dns:// and tls://"));
        }
        None => (text, false),
    };
    if text.starts_with('/') && !by_tls {
        return Ok(Target::File(text.into()));
    }
    let port = if by_tls { TLS_PORT } else { PORT };
    let address = text.parse::<IpAddr>().map(|ip| (ip, port).into()).or_else(|_| text.parse());
    match address {
        Ok(address) if by_tls => Ok(Target::Tls(address)),
        Ok(address) => Ok(Target::Address(address)),
        Err(_) => {
            wrong(line, format!("forward: {text:?} is neither ADDRESS, ADDRESS:PORT nor the path of a file"))
        }
    }
}

fn cache(plugin: &Directive) -> Result<CacheSettings, CorefileError> {
    let mut settings = CacheSettings::default();
    let mut arguments = plugin.arguments();
    // The zones behind the lifetime are those of the block.
    if let Some(ttl) = arguments.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
        let ttl = number(ttl, 1..=u32::MAX, plugin.line)?;
        (settings.success.max, settings.denial.max) = (ttl, ttl);
    }
    for option in &plugin.block {
        let (line, arguments) = (option.line, option.arguments().collect::<Vec<&str>>());
        match (option.name(), &*arguments) {
            (sort @ ("success" | "denial"), [capacity, rest @ ..]) if rest.len() < 3 => {
                let lifetimes = if sort == "success" { &mut settings.success } else { &mut settings.denial };
                lifetimes.capacity = number(capacity, 1..=1_000_000, line)? as usize;
                if let Some(max) = rest.first() {
                    lifetimes.max = number(max, 1..=u32::MAX, line)?;
                }
                if let Some(min) = rest.get(1) {
                    lifetimes.min = number(min, 0..=u32::MAX, line)?;
                }
            }
            ("prefetch", [amount, rest @ ..]) if rest.len() < 3 => {
                let mut prefetch = Prefetch {
                    amount: number(amount, 1..=u32::MAX, line)?,
                    duration: Duration::from_secs(60),
                    percentage: 10,
                };
                if let Some(text) = rest.first() {
                    prefetch.duration = duration(text, line)?;
                }
                if let Some(text) = rest.get(1) {
                    prefetch.percentage = number(text.trim_end_matches('%'), 1..=100, line)?;
                }
                settings.prefetch = Some(prefetch);
            }
            ("serve_stale", rest) if rest.len() < 3 => {
                let mut stale = Stale { duration: limits::STALE, verify: false };
                if let Some(text) = rest.first() {
                    stale.duration = duration(text, line)?;
                }
                match rest.get(1) {
                    Some(&"verify") => stale.verify = true,
                    None | Some(&"immediate") => {}
                    Some(other) => {
                        return wrong(line, format!("serve_stale: {other:?} is not immediate or verify"));
                    }
                }
                settings.stale = Some(stale);
            }
            ("servfail", [text]) => settings.failure_ttl = duration(text, line)?.as_secs().min(300) as u32,
            // The cluster's own names are never cached.
            ("disable", ["success" | "denial", zones @ ..]) if !zones.is_empty() => {}
            ("keepttl", []) => return wrong(line, "cache: keepttl is not supported"),
            (other, _) => {
                return wrong(
                    line,
                    format!(
                        "cache: {other:?} with these arguments is not supported: there are success|denial CAPACITY [TTL] [MINTTL], prefetch AMOUNT [DURATION] [PERCENTAGE%], serve_stale [DURATION] [immediate|verify], servfail DURATION"
                    ),
                );
            }
        }
    }
    Ok(settings)
}

fn number(text: &str, range: std::ops::RangeInclusive<u32>, line: Line) -> Result<u32, CorefileError> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => wrong(line, format!("{text:?} is not a number from {} to {}", range.start(), range.end())),
    }
}

/// Parses a duration in Go's form, such as `1h30m` or `500ms`; a bare number is seconds.
fn duration(text: &str, line: Line) -> Result<Duration, CorefileError> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let nanoseconds = duration::parse(text).ok().and_then(|parsed| u64::try_from(parsed).ok());
    match nanoseconds {
        Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
        None => wrong(line, format!("{text:?} is not a duration such as 30s or 1h")),
    }
}

#[cfg(test)]
mod tests;
