//! Pods that are placed and wait until plugins permit their binding.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use tokio::time::Instant;

/// Waiting pods, each with what its binding needs.
#[derive(Debug)]
pub(super) struct Waiting<P> {
    pods: BTreeMap<Uid, One<P>>,
    /// The end of each wait for a plugin.
    ends: BTreeSet<(Instant, Uid, &'static str)>,
    /// Pods of PodGroups by the plugins that they wait for.
    of_groups: BTreeMap<(ObjectKey, &'static str), BTreeSet<Uid>>,
}

#[derive(Debug)]
struct One<P> {
    placed: P,
    group: Option<ObjectKey>,
    since: Instant,
    /// By plugin: the end of the wait for it, and its length.
    pending: BTreeMap<&'static str, (Instant, Duration)>,
}

/// A wait that has lasted too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired {
    pub uid: Uid,
    pub plugin: &'static str,
    pub timeout: Duration,
}

impl<P> Default for Waiting<P> {
    fn default() -> Self {
        Self { pods: BTreeMap::new(), ends: BTreeSet::new(), of_groups: BTreeMap::new() }
    }
}

impl<P> Waiting<P> {
    /// Has a pod wait for plugins, for so long each. `group` is its PodGroup.
    pub fn add(
        &mut self,
        (uid, group): (&Uid, Option<ObjectKey>),
        placed: P,
        plugins: &[(&'static str, Duration)],
        now: Instant,
    ) {
        for (group, (plugin, _)) in group.iter().cycle().zip(plugins) {
            self.of_groups.entry((group.clone(), plugin)).or_default().insert(uid.clone());
        }
        let pending = plugins.iter().map(|(plugin, timeout)| (*plugin, (now + *timeout, *timeout)));
        let one = One { placed, group, since: now, pending: pending.collect() };
        self.ends.extend(one.pending.iter().map(|(plugin, (end, _))| (*end, uid.clone(), *plugin)));
        self.pods.insert(uid.clone(), one);
    }

    /// Notes that a plugin allows a pod; returns it, and since when it has waited, if that was the last one.
    pub fn allow(&mut self, uid: &Uid, plugin: &'static str) -> Option<(P, Instant)> {
        let one = self.pods.get_mut(uid)?;
        let ended = one.pending.remove(plugin);
        let (group, is_last) = (one.group.clone(), one.pending.is_empty());
        if let Some((end, _)) = ended {
            self.end(uid, group, plugin, end);
        }
        if is_last { self.remove(uid) } else { None }
    }

    /// Notes that a plugin allows all pods of a PodGroup; returns those that wait for no other, and since when they have
    /// waited. Costs nothing for pods that do not wait for the plugin.
    pub fn allow_group(&mut self, group: &ObjectKey, plugin: &'static str) -> Vec<(P, Instant)> {
        let uids = self.of_groups.remove(&(group.clone(), plugin)).unwrap_or_default();
        uids.iter().filter_map(|uid| self.allow(uid, plugin)).collect()
    }

    /// Removes the wait of a pod for a plugin.
    fn end(&mut self, uid: &Uid, group: Option<ObjectKey>, plugin: &'static str, end: Instant) {
        self.ends.remove(&(end, uid.clone(), plugin));
        let Some(key) = group.map(|group| (group, plugin)) else { return };
        if let Some(pods) = self.of_groups.get_mut(&key) {
            pods.remove(uid);
            if pods.is_empty() {
                self.of_groups.remove(&key);
            }
        }
    }

    /// Ends the wait of a pod; returns it, and since when it has waited.
    pub fn remove(&mut self, uid: &Uid) -> Option<(P, Instant)> {
        let one = self.pods.remove(uid)?;
        for (plugin, (end, _)) in one.pending {
            self.end(uid, one.group.clone(), plugin, end);
        }
        Some((one.placed, one.since))
    }

    /// Returns the first wait that has lasted too long.
    pub fn expired(&self, now: Instant) -> Option<Expired> {
        let (_, uid, plugin) = self.ends.first().filter(|(end, ..)| *end <= now)?;
        let (_, timeout) = self.pods.get(uid)?.pending.get(plugin)?;
        Some(Expired { uid: uid.clone(), plugin, timeout: *timeout })
    }

    /// Returns when the next wait ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.ends.first().map(|(end, ..)| *end)
    }

    pub fn contains(&self, uid: &Uid) -> bool {
        self.pods.contains_key(uid)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pods.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn pod_goes_on_when_all_of_its_plugins_allow_it() {
        let (mut waiting, now, uid) = (Waiting::default(), Instant::now(), Uid::from("a"));
        waiting.add((&uid, None), "pod", &[("A", LONG), ("B", SHORT)], now);
        assert_eq!(waiting.deadline(), Some(now + SHORT));
        assert_eq!(waiting.allow(&uid, "B"), None);
        assert_eq!(waiting.deadline(), Some(now + LONG), "what was allowed ends no more");
        assert_eq!(waiting.allow(&uid, "C"), None, "a plugin that it does not wait for");
        assert_eq!(waiting.allow(&uid, "A"), Some(("pod", now)));
        assert_eq!((waiting.allow(&uid, "A"), waiting.deadline(), waiting.len()), (None, None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn shortest_wait_ends_first_and_removal_ends_all() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.add((&"a".into(), None), 1, &[("A", LONG)], now);
        waiting.add((&"b".into(), None), 2, &[("A", LONG), ("B", SHORT)], now);
        assert_eq!(waiting.expired(now + SHORT - Duration::from_secs(1)), None);
        let expired = Expired { uid: "b".into(), plugin: "B", timeout: SHORT };
        assert_eq!(waiting.expired(now + SHORT), Some(expired));
        assert_eq!(waiting.remove(&"b".into()), Some((2, now)));
        assert_eq!(waiting.expired(now + SHORT), None);
        assert_eq!(waiting.deadline(), Some(now + LONG));
        assert!(waiting.contains(&"a".into()) && !waiting.contains(&"b".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_a_group_are_allowed_together() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let group = |name: &str| ObjectKey::new("ns", name);
        let mut add = |uid: &str, name: &str, plugins: &[_]| {
            waiting.add((&uid.into(), Some(group(name))), uid.to_owned(), plugins, now);
        };
        add("a", "g", &[("A", LONG)]);
        add("b", "g", &[("A", LONG), ("B", LONG)]);
        add("c", "g", &[("A", LONG)]);
        add("d", "h", &[("A", LONG)]);
        waiting.remove(&"c".into());
        assert_eq!(waiting.allow_group(&group("x"), "A"), []);
        assert_eq!(waiting.allow_group(&group("g"), "A"), [("a".to_owned(), now)]);
        assert_eq!(waiting.allow_group(&group("g"), "A"), []);
        assert_eq!(waiting.allow_group(&group("g"), "B"), [("b".to_owned(), now)]);
        assert_eq!((waiting.len(), waiting.deadline()), (1, Some(now + LONG)));
        assert_eq!(waiting.allow(&"d".into(), "A"), Some(("d".to_owned(), now)));
        assert!(waiting.of_groups.is_empty());
    }
}
