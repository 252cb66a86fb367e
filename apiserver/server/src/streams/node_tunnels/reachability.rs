//! The choice between the two ways to a kubelet or a pod, from what is known of its node: pure functions on plain data.
//! Times are those of any one clock.

use std::time::Duration;

use crate::limits;

/// The server on a node that is to be reached. A firewall may let connections pass to one and not to the
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

/// The experience with the direct way to a node that has a tunnel.
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
}
