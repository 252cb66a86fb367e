//! Takes the place of another proxy under traffic: connections that its rules translate stay with the
//! kernel's connection tracking until they end.

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{DataPlaneError, Look, Others};

use crate::limits;

/// `true` if no other proxy translates connections to services; `None` while that is not known.
pub type Alone = watch::Receiver<Option<bool>>;

pub(crate) struct Takeover {
    /// There are tables of an earlier process, which has already let the connections of other proxies pass.
    adopted: bool,
    /// The time of our first tables.
    begun: Option<Instant>,
    /// The time of the next check; `None` once no other proxy translates anything.
    due: Option<Instant>,
    seen: Others,
    failing: bool,
    alone: watch::Sender<Option<bool>>,
}

impl Takeover {
    pub fn new(adopted: bool, alone: watch::Sender<Option<bool>>) -> Self {
        Self { adopted, begun: None, due: None, seen: Others::default(), failing: false, alone }
    }

    /// Returns the time of the next check.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Prepares an apply of everything; call it before each. The first one takes over all connections that
    /// are not known to be another proxy's.
    pub fn before(&mut self, plane: &mut dyn DataPlane) {
        if self.begun.is_some() {
            return;
        }
        let look = if self.adopted { Look::Kept } else { Look::Before };
        if let Err(error) = plane.let_others_pass(look) {
            self.failed(&error);
        }
    }

    /// Follows an apply of everything; call it after each.
    pub fn after(&mut self, plane: &mut dyn DataPlane) {
        if self.begun.is_none() {
            self.begun = Some(Instant::now());
            self.look(plane);
        } else {
            self.lost();
        }
    }

    /// Records that a service has lost a backend: clients that still reach it by another proxy's translation
    /// have to leave it.
    pub fn lost(&mut self) {
        let soon = Instant::now() + limits::TAKEOVER_SOON;
        self.due = self.due.map(|due| due.min(soon));
    }

    /// Detects other components that translate connections, such as kube-proxy.
    pub fn look(&mut self, plane: &mut dyn DataPlane) {
        let now = Instant::now();
        let settling = !self.adopted && self.begun.is_some_and(|at| now < at + limits::TAKEOVER_SETTLE);
        self.due = Some(now + limits::TAKEOVER_PAUSE);
        match plane.let_others_pass(if settling { Look::Settling } else { Look::Settled }) {
            Ok(others) => {
                self.failing = false;
                self.saw(others);
                if !settling && others.connections == 0 {
                    self.due = None;
                }
            }
            Err(error) => {
                self.failed(&error);
                // Assumes that there are none; what is known already stays.
                self.alone.send_if_modified(|alone| alone.is_none() && alone.replace(true).is_none());
            }
        }
    }

    fn saw(&mut self, others: Others) {
        let Others { connections, to_services, removed } = others;
        if connections > 0 && self.seen.connections == 0 {
            info!(
                connections,
                to_services,
                "others' rules translate connections to services: they stay as they are until they end, what \
                 is new is ours"
            );
        } else if connections == 0 && self.seen.connections > 0 {
            info!("the last connection that others translated has ended");
        }
        if removed > 0 {
            info!(removed, "removed conntrack entries of datagrams to removed backends");
        }
        self.seen = others;
        let alone = Some(to_services == 0);
        self.alone.send_if_modified(|now| std::mem::replace(now, alone) != alone);
    }

    fn failed(&mut self, error: &DataPlaneError) {
        if !std::mem::replace(&mut self.failing, true) {
            warn!(
                error = error as &dyn std::error::Error,
                "connections that others' rules translate cannot be told from new ones, and may be reset"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use userspace_dataplane::tables::{Applied, Interface, NodeTables, ServiceTables};

    use super::*;

    /// Answers checks in order, and records their kinds.
    #[derive(Default)]
    struct Plane {
        answers: Vec<Others>,
        looks: Vec<Look>,
    }

    impl DataPlane for Plane {
        fn apply_full(&mut self, _: &BTreeMap<String, ServiceTables>) -> Result<Applied, DataPlaneError> {
            Ok(Applied::default())
        }

        fn apply_service(&mut self, _: &str, _: Option<&ServiceTables>) -> Result<Applied, DataPlaneError> {
            Ok(Applied::default())
        }

        fn set_node(&mut self, _: &NodeTables) -> Result<(), DataPlaneError> {
            Ok(())
        }

        fn set_interfaces(&mut self, _: &[Interface]) -> Result<(), DataPlaneError> {
            Ok(())
        }

        fn let_others_pass(&mut self, look: Look) -> Result<Others, DataPlaneError> {
            self.looks.push(look);
            Ok(self.answers.pop().unwrap_or_default())
        }
    }

    async fn next(takeover: &mut Takeover, plane: &mut Plane) {
        tokio::time::sleep_until(takeover.due().unwrap()).await;
        takeover.look(plane);
    }

    fn some(connections: usize, to_services: usize) -> Others {
        Others { connections, to_services, removed: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn looks_end_with_the_last_connection_of_others() {
        let (alone, known) = watch::channel(None);
        let mut takeover = Takeover::new(false, alone);
        // From the last to the first.
        let answers = vec![some(0, 0), some(1, 0), some(2, 1), some(2, 1), some(2, 1)];
        let mut plane = Plane { answers, ..Plane::default() };
        let start = Instant::now();
        takeover.before(&mut plane);
        assert_eq!((takeover.due(), *known.borrow()), (None, None));
        takeover.after(&mut plane);
        assert_eq!(*known.borrow(), Some(false));
        // A loss is followed by a check at once.
        takeover.lost();
        assert_eq!(takeover.due(), Some(start + limits::TAKEOVER_SOON));
        next(&mut takeover, &mut plane).await;
        next(&mut takeover, &mut plane).await;
        assert_eq!(*known.borrow(), Some(true), "only the node's own addresses are left");
        tokio::time::advance(limits::TAKEOVER_SETTLE).await;
        next(&mut takeover, &mut plane).await;
        assert_eq!(takeover.due(), None);
        let settling = Look::Settling;
        assert_eq!(plane.looks, [Look::Before, settling, settling, settling, Look::Settled]);
        takeover.lost();
        takeover.before(&mut plane);
        takeover.after(&mut plane);
        assert_eq!((takeover.due(), plane.looks.len()), (None, 5), "nothing is looked for again");
    }

    #[tokio::test(start_paused = true)]
    async fn tables_of_an_earlier_process_are_settled() {
        let (alone, known) = watch::channel(None);
        let mut takeover = Takeover::new(true, alone);
        let mut plane = Plane::default();
        takeover.before(&mut plane);
        takeover.after(&mut plane);
        assert_eq!(plane.looks, [Look::Kept, Look::Settled]);
        assert_eq!((takeover.due(), *known.borrow()), (None, Some(true)));
    }
}
