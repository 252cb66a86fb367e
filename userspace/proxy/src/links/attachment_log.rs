//! Log lines about changes of the interfaces that the data plane is attached to. Pure, except for the log.

use std::collections::BTreeSet;

use tracing::{debug, info, warn};
use userspace_dataplane::tables::{Interface, Role};

use super::Link;
use crate::config::Config;

/// Returns reasons why packets from outside bypass the data plane: configured uplinks that do not exist or
/// are taken for pods' interfaces.
pub(crate) fn missing(links: &[Link], interfaces: &[Interface], config: &Config) -> Vec<String> {
    let is_uplink = |name: &str| interfaces.iter().any(|one| one.role == Role::Uplink && one.name == name);
    let reason = |name: &String| {
        if links.iter().any(|link| link.name == *name) {
            format!("{name}, an uplink by name, is taken for a pod's interface")
        } else {
            format!("there is no interface {name}, which is an uplink by name")
        }
    };
    config.uplinks.iter().filter(|name| !is_uplink(name)).map(reason).collect()
}

/// Logs the roles of interfaces, as far as they have changed.
pub(crate) fn log_changes(before: Option<&[Interface]>, now: &[Interface]) {
    let Difference { came, went, uplinks, pods } = Difference::between(before.unwrap_or_default(), now);
    if has_other_uplinks(before, now) {
        info!(%uplinks, pods, %came, %went, "attached to interfaces");
    } else {
        debug!(%uplinks, pods, %came, %went, "attached to interfaces");
    }
    let had = before.is_none_or(|before| before.iter().any(|one| one.role == Role::Uplink));
    if uplinks.is_empty() && had {
        warn!(
            "no interface is an uplink: nobody outside reaches node ports, load balancers' and external \
             addresses here; an uplink is up, has an address and does not lead to a pod, or is named by --uplinks"
        );
    }
}

/// Returns `true` if the uplinks are others than before, or the first.
fn has_other_uplinks(before: Option<&[Interface]>, now: &[Interface]) -> bool {
    before.is_none_or(|before| !uplinks(before).eq(uplinks(now)))
}

/// Returns the names of uplinks.
fn uplinks(interfaces: &[Interface]) -> impl Iterator<Item = &str> {
    interfaces.iter().filter(|one| one.role == Role::Uplink).map(|one| one.name.as_str())
}

/// The changes to log.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    /// New interfaces, with their roles.
    came: String,
    went: String,
    uplinks: String,
    /// Number of pods' interfaces.
    pods: usize,
}

impl Difference {
    fn between(before: &[Interface], now: &[Interface]) -> Self {
        let word = |one: &Interface| match one.role {
            Role::Uplink => format!("{} (uplink)", one.name),
            Role::Pod => format!("{} (pod)", one.name),
        };
        let all = |interfaces: &[Interface]| interfaces.iter().map(word).collect::<BTreeSet<_>>();
        let (old, new) = (all(before), all(now));
        let list =
            |some: &mut dyn Iterator<Item = &String>| some.map(String::as_str).collect::<Vec<_>>().join(", ");
        Self {
            came: list(&mut new.difference(&old)),
            went: list(&mut old.difference(&new)),
            uplinks: uplinks(now).collect::<Vec<_>>().join(", "),
            pods: now.iter().filter(|one| one.role == Role::Pod).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, role: Role) -> Interface {
        Interface { name: name.to_owned(), index: 1, role }
    }

    #[test]
    fn a_named_uplink_that_is_not_there_or_a_pods_is_missing() {
        let link = |name: &str| Link { name: name.to_owned(), ..Link::default() };
        let links = [link("eth0"), link("hwp1")];
        let interfaces = [interface("eth0", Role::Uplink), interface("hwp1", Role::Pod)];
        let of = |names: &[&str]| {
            let uplinks = names.iter().map(|name| (*name).to_owned()).collect();
            missing(&links, &interfaces, &Config { uplinks, ..Config::for_node("a").unwrap() })
        };
        assert!(of(&[]).is_empty() && of(&["eth0"]).is_empty());
        let found = of(&["eth0", "ehto0", "hwp1"]);
        assert!(found.len() == 2 && found[0].contains("no interface ehto0"), "{found:?}");
        assert!(found[1].starts_with("hwp1, "), "{found:?}");
    }

    #[test]
    fn attached_and_detached_links_are_logged_with_their_role() {
        let before = [interface("eth0", Role::Uplink), interface("a", Role::Pod), interface("b", Role::Pod)];
        let now = [interface("eth0", Role::Uplink), interface("a", Role::Uplink), interface("c", Role::Pod)];
        let difference = Difference::between(&before, &now);
        assert_eq!(
            (difference.came.as_str(), difference.went.as_str()),
            ("a (uplink), c (pod)", "a (pod), b (pod)")
        );
        assert_eq!((difference.uplinks.as_str(), difference.pods), ("eth0, a", 1));
    }

    #[test]
    fn pods_that_come_and_go_are_no_change_of_uplinks() {
        let eth0 = || interface("eth0", Role::Uplink);
        let before = [interface("a", Role::Pod), eth0()];
        for now in [vec![eth0()], vec![eth0(), interface("b", Role::Pod), interface("c", Role::Pod)]] {
            assert!(!has_other_uplinks(Some(&before), &now), "{now:?}");
        }
        assert!(!has_other_uplinks(Some(&before[..1]), &[]));
        for now in [vec![], vec![interface("eth0", Role::Pod)], vec![eth0(), interface("eth1", Role::Uplink)]]
        {
            assert!(has_other_uplinks(Some(&before), &now), "{now:?}");
        }
        assert!(has_other_uplinks(None, &[]), "the first look is told");
    }
}
