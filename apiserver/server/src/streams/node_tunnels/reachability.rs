//! The choice between the two ways to a kubelet or a pod, from what is known of its node: pure functions on plain data.
//! Times are those of any one clock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::limits;

/// The kind of a server on a node that is to be reached. A firewall may let connections pass to one and not to the
/// other, so what is learnt about one says nothing about the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    Kubelet,
    /// A pod, or another port of the node.
    Pod,
}

impl Destination {
    pub const ALL: [Self; 2] = [Self::Kubelet, Self::Pod];
}

/// A server on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    pub kind: Destination,
    /// `None` for one that has a name: no tunnel leads there.
    pub ip: Option<IpAddr>,
}

/// The way of a connection to a server on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the address in the status of the node or the pod.
    Direct,
    /// Through a tunnel that the node keeps to this server.
    Tunnel,
}

impl Way {
    pub const ALL: [Self; 2] = [Self::Direct, Self::Tunnel];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
        }
    }
}

/// An attempt to connect, and the time that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub way: Way,
    pub time: Duration,
}

const fn step(way: Way, time: Duration) -> Step {
    Step { way, time }
}

/// A node that has no tunnel is dialled as ever.
const WITHOUT: [Step; 1] = [step(Way::Direct, limits::BACKEND_CONNECT)];
/// A node may have a tunnel and be reachable all the same. Direct dialing is the shorter way, and keeps the load of logs
/// off the tunnel.
const DIRECT_FIRST: [Step; 2] =
    [step(Way::Direct, limits::DIRECT_BEFORE_TUNNEL), step(Way::Tunnel, limits::TUNNEL_DIAL)];
/// The direct dial last has the time that is left: the tunnel may be one whose node has just died.
const TUNNEL_FIRST: [Step; 2] =
    [step(Way::Tunnel, limits::TUNNEL_DIAL), step(Way::Direct, limits::BACKEND_CONNECT)];

/// The experience with the direct way to one server on a node that has a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The tunnel was needed, and goes first until then; `None` if direct dialing worked last, or was not tried.
    tunnel_first: Option<Duration>,
}

impl Known {
    /// Returns the attempts to make one after another, and what is known meanwhile.
    pub fn plan(self, has_tunnel: bool, now: Duration) -> (&'static [Step], Self) {
        match self.tunnel_first {
            _ if !has_tunnel => (&WITHOUT, self),
            Some(until) if now < until => (&TUNNEL_FIRST, self),
            // One request finds out whether the firewall is gone; those beside it do not wait for that.
            Some(_) => (&DIRECT_FIRST, Self::tunnel_first(now)),
            None => (&DIRECT_FIRST, self),
        }
    }

    /// Returns what is known once a connection was made by `way`; `direct_failed` if direct dialing failed before.
    pub fn learn(self, way: Way, direct_failed: bool, now: Duration) -> Self {
        match way {
            Way::Direct => Self::default(),
            Way::Tunnel if direct_failed => Self::tunnel_first(now),
            Way::Tunnel => self,
        }
    }

    fn tunnel_first(now: Duration) -> Self {
        Self { tunnel_first: Some(now + limits::DIRECT_RETRY) }
    }
}

/// The experience with the servers on one node that has a tunnel. That with a pod says nothing about others: a
/// NetworkPolicy of a tenant may keep the API server from its own pods.
#[derive(Debug, Default)]
pub struct Experience {
    kubelet: Known,
    /// Pods that were reached by the tunnel when direct dialing had failed, by address.
    pods: HashMap<IpAddr, Known>,
}

impl Experience {
    /// Returns the attempts to make one after another to reach a server.
    pub fn plan(&mut self, server: Server, has_tunnel: bool, now: Duration) -> &'static [Step] {
        let (steps, known) = self.of(server).plan(has_tunnel, now);
        self.set(server, known, now);
        steps
    }

    /// Takes note of a connection to a server by `way`; `direct_failed` if direct dialing failed before.
    pub fn learn(&mut self, server: Server, way: Way, direct_failed: bool, now: Duration) {
        let known = self.of(server).learn(way, direct_failed, now);
        self.set(server, known, now);
    }

    fn of(&self, server: Server) -> Known {
        match server.kind {
            Destination::Kubelet => self.kubelet,
            Destination::Pod => server.ip.and_then(|ip| self.pods.get(&ip)).copied().unwrap_or_default(),
        }
    }

    fn set(&mut self, server: Server, known: Known, now: Duration) {
        match (server.kind, server.ip) {
            (Destination::Kubelet, _) => self.kubelet = known,
            (Destination::Pod, None) => {}
            (Destination::Pod, Some(ip)) if known == Known::default() => drop(self.pods.remove(&ip)),
            (Destination::Pod, Some(ip)) => {
                if self.pods.len() >= limits::TUNNEL_PODS && !self.pods.contains_key(&ip) {
                    self.make_room(now);
                }
                self.pods.insert(ip, known);
            }
        }
    }

    /// Forgets the pods that are to be dialled directly again in any case, or the one for which that is so first.
    fn make_room(&mut self, now: Duration) {
        self.pods.retain(|_, known| known.tunnel_first.is_some_and(|until| now < until));
        if self.pods.len() >= limits::TUNNEL_PODS
            && let Some(first) = self.pods.iter().min_by_key(|(ip, known)| (known.tunnel_first, **ip))
        {
            let ip = *first.0;
            self.pods.remove(&ip);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn ways(known: Known, has_tunnel: bool, now: Duration) -> Vec<Way> {
        known.plan(has_tunnel, now).0.iter().map(|step| step.way).collect()
    }

    #[test]
    fn node_without_a_tunnel_is_dialled_directly_for_the_whole_time() {
        let behind_firewall = Known::default().learn(Way::Tunnel, true, NOW);
        for known in [Known::default(), behind_firewall] {
            assert_eq!(known.plan(false, NOW), (&[step(Way::Direct, limits::BACKEND_CONNECT)][..], known));
        }
    }

    #[test]
    fn node_that_is_reachable_is_always_dialled_directly_first() {
        let mut known = Known::default();
        for later in 0..3 {
            let now = NOW + later * limits::DIRECT_RETRY;
            assert_eq!(ways(known, true, now), [Way::Direct, Way::Tunnel]);
            known = known.plan(true, now).1.learn(Way::Direct, false, now);
        }
        assert_eq!(known, Known::default());
    }

    #[test]
    fn node_behind_a_firewall_is_reached_by_its_tunnel_at_once_until_direct_dialing_is_tried_again() {
        let known = Known::default().plan(true, NOW).1.learn(Way::Tunnel, true, NOW);
        let later = NOW + limits::DIRECT_RETRY - Duration::from_secs(1);
        assert_eq!(ways(known, true, later), [Way::Tunnel, Way::Direct]);
        // A tunnel that works says nothing about the direct way.
        let known = known.learn(Way::Tunnel, false, later);
        let again = NOW + limits::DIRECT_RETRY;
        let (steps, meanwhile) = known.plan(true, again);
        assert_eq!(steps[0].way, Way::Direct);
        assert_eq!(ways(meanwhile, true, again), [Way::Tunnel, Way::Direct], "one request looks");
        assert_eq!(meanwhile.learn(Way::Direct, false, again), Known::default(), "the firewall is gone");
        assert_eq!(ways(meanwhile.learn(Way::Tunnel, true, again), true, again), [Way::Tunnel, Way::Direct]);
    }

    #[test]
    fn tunnel_that_fails_leaves_time_for_the_direct_way() {
        let known = Known::default().learn(Way::Tunnel, true, NOW);
        let (steps, _) = known.plan(true, NOW);
        assert!(steps[0].time < limits::BACKEND_CONNECT);
        // The tunnel's node died, and came back where it can be reached.
        assert_eq!(known.learn(Way::Direct, false, NOW), Known::default());
    }

    fn pod(last: u32) -> Server {
        Server { kind: Destination::Pod, ip: Some(IpAddr::from((0x0af4_0000 + last).to_be_bytes())) }
    }

    const KUBELET: Server = Server { kind: Destination::Kubelet, ip: None };

    fn first(experience: &mut Experience, server: Server) -> Way {
        experience.plan(server, true, NOW)[0].way
    }

    #[test]
    fn pod_that_was_not_reached_directly_sends_no_other_pod_and_not_the_kubelet_through_the_tunnel() {
        let mut experience = Experience::default();
        experience.learn(pod(1), Way::Tunnel, true, NOW);
        assert_eq!(first(&mut experience, pod(1)), Way::Tunnel);
        assert_eq!(first(&mut experience, pod(2)), Way::Direct);
        assert_eq!(first(&mut experience, KUBELET), Way::Direct);
        // A server with a name has no experience.
        let named = Server { kind: Destination::Pod, ip: None };
        experience.learn(named, Way::Tunnel, true, NOW);
        assert_eq!(first(&mut experience, named), Way::Direct);
        experience.learn(pod(1), Way::Direct, false, NOW);
        assert_eq!(first(&mut experience, pod(1)), Way::Direct);
        assert!(experience.pods.is_empty(), "nothing is remembered of pods that are reached");
    }

    #[test]
    fn pods_of_a_node_that_are_remembered_are_bounded_and_the_oldest_go_first() {
        let mut experience = Experience::default();
        let pods = u32::try_from(limits::TUNNEL_PODS).unwrap();
        for last in 0..=pods {
            experience.learn(pod(last), Way::Tunnel, true, NOW + Duration::from_millis(last.into()));
        }
        assert_eq!(experience.pods.len(), limits::TUNNEL_PODS);
        assert_eq!(
            [0, 1, pods].map(|last| first(&mut experience, pod(last))),
            [Way::Direct, Way::Tunnel, Way::Tunnel]
        );
        // The time of all others is over, so only the new one is left.
        experience.learn(pod(pods + 1), Way::Tunnel, true, NOW + 2 * limits::DIRECT_RETRY);
        assert_eq!(experience.pods.len(), 1);
    }
}
