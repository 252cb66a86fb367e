//! The place of another proxy is taken while traffic goes on: connections that its rules translate
//! stay with the kernel's connection tracking until they end.

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{DataPlaneError, Look, Others};

use crate::limits;

/// Whether nobody else translates connections to services; none while that is not known.
pub type Alone = watch::Receiver<Option<bool>>;

pub(crate) struct Takeover {
    /// There are tables of an earlier process: others' connections passed before this one began.
    kept: bool,
    /// When our tables were first there.
    begun: Option<Instant>,
    /// When to look again; none once nobody else translates anything.
    due: Option<Instant>,
    seen: Others,
    failing: bool,
    alone: watch::Sender<Option<bool>>,
}

impl Takeover {
    pub fn new(kept: bool, alone: watch::Sender<Option<bool>>) -> Self {
        Self { kept, begun: None, due: None, seen: Others::default(), failing: false, alone }
    }

    /// When the next look is due.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// To be called before each apply of everything: the first one takes connections over unless they
    /// are known to be others'.
    pub fn before(&mut self, plane: &mut dyn DataPlane) {
        if self.begun.is_some() {
            return;
        }
        let look = if self.kept { Look::Kept } else { Look::Before };
        if let Err(error) = plane.let_others_pass(look) {
            self.failed(&error);
        }
    }

    /// To be called after each apply of everything.
    pub fn after(&mut self, plane: &mut dyn DataPlane) {
        if self.begun.is_none() {
            self.begun = Some(Instant::now());
            self.look(plane);
        } else {
            self.lost();
        }
    }

    /// A service has lost a backend: whoever still goes there by others' translation is to leave it.
    pub fn lost(&mut self) {
        let soon = Instant::now() + limits::TAKEOVER_SOON;
        self.due = self.due.map(|due| due.min(soon));
    }

    /// Looks who else translates connections.
    pub fn look(&mut self, plane: &mut dyn DataPlane) {
        let now = Instant::now();
        let settling = !self.kept && self.begun.is_some_and(|at| now < at + limits::TAKEOVER_SETTLE);
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
                // As if nobody did; what is known already stays as it is.
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
            info!(removed, "others' translations of datagrams to backends that are gone are removed");
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

    /// Answers looks one after the other, and notes what kind they are of.
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
        // A loss is looked after at once.
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
