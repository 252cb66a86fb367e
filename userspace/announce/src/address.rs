//! The state of one address on this node.
//!
//! ```text
//!            leads            nobody answers
//!   Idle ──────────▶ Probing ────────────────▶ Announcing ◀──────────────┐ leads again
//!    ▲                 │  ▲                      │ another node leads ──▶ Yielding
//!    │     answered by │  │ after a pause        │                          │ that node announces,
//!    │    somebody     ▼  │                      │ nobody else may          │ or time is over
//!    │              Contested                    ▼                          ▼
//!    └──────────────────────────────────────── Idle ◀───────────────────────┘
//! ```
//!
//! A node that announces answers everybody; one that yields answers hosts, but not probes, so that another node
//! takes the address while it is still served.

use tokio::time::Instant;

use crate::limits;
use crate::wire::{Heard, Mac};

/// The state of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Idle,
    Probing {
        sent: u8,
        next: Instant,
        /// The contests in a row so far.
        contests: u32,
    },
    Contested {
        until: Instant,
        contests: u32,
    },
    Announcing {
        /// Announcements that are still to be made.
        left: u8,
        next: Instant,
        /// The last announcement in defence of the address.
        defended: Option<Instant>,
    },
    Yielding {
        until: Instant,
    },
}

/// The role that the choice gives this node for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This node is to announce.
    Lead,
    /// Another live node is.
    Follow,
    /// No node is, as far as this one knows.
    None,
}

/// The frame that a step asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    Nothing,
    /// Ask who has the address.
    Probe,
    /// Tell everybody that this node has it.
    Announce,
}

/// The reaction to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    Nothing,
    Answer,
    Announce,
    /// Somebody else has answered too many probes.
    Report(Mac),
}

impl State {
    pub fn announces(&self) -> bool {
        matches!(self, Self::Announcing { .. } | Self::Yielding { .. })
    }

    /// Returns the time of the next step; `None` if only an event leads on.
    pub fn due(&self) -> Option<Instant> {
        match self {
            Self::Idle | Self::Announcing { left: 0, .. } => None,
            Self::Probing { next, .. } | Self::Announcing { next, .. } => Some(*next),
            Self::Contested { until, .. } | Self::Yielding { until } => Some(*until),
        }
    }

    /// Takes the step that is due.
    pub fn step(&mut self, role: Role, now: Instant) -> Say {
        let probing = |contests| Self::Probing { sent: 0, next: now, contests };
        let announcing = Self::Announcing { left: limits::ANNOUNCEMENTS, next: now, defended: None };
        match (*self, role) {
            (Self::Idle, Role::Lead) => *self = probing(0),
            (Self::Probing { .. } | Self::Contested { .. }, Role::Follow | Role::None) => *self = Self::Idle,
            (Self::Contested { until, contests }, Role::Lead) if now >= until => *self = probing(contests),
            (Self::Announcing { .. }, Role::Follow) => *self = Self::Yielding { until: now + limits::YIELD },
            (Self::Announcing { .. }, Role::None) => *self = Self::Idle,
            (Self::Yielding { .. }, Role::Lead) => *self = announcing,
            (Self::Yielding { until }, _) if now >= until => *self = Self::Idle,
            _ => {}
        }
        match self {
            Self::Probing { sent, next, .. } if now >= *next => {
                if *sent < limits::PROBES {
                    *sent += 1;
                    *next = now + limits::PROBE_PAUSE;
                    return Say::Probe;
                }
                *self = announcing;
                self.announce(now)
            }
            Self::Announcing { left: 1.., next, .. } if now >= *next => self.announce(now),
            _ => Say::Nothing,
        }
    }

    fn announce(&mut self, now: Instant) -> Say {
        let Self::Announcing { left, next, .. } = self else { return Say::Nothing };
        *left = left.saturating_sub(1);
        *next = now + limits::ANNOUNCE_PAUSE;
        Say::Announce
    }

    /// Reacts to a frame of another machine.
    pub fn hear(&mut self, heard: Heard, now: Instant) -> Reaction {
        match (&mut *self, heard) {
            (Self::Announcing { .. }, Heard::Question | Heard::Probe)
            | (Self::Yielding { .. }, Heard::Question) => Reaction::Answer,
            (Self::Announcing { defended, .. }, Heard::Claim(_)) => {
                let recent = |at: Instant| now.saturating_duration_since(at) < limits::DEFENCE_PAUSE;
                if defended.is_some_and(recent) {
                    return Reaction::Nothing;
                }
                *defended = Some(now);
                Reaction::Announce
            }
            (Self::Probing { contests, .. }, Heard::Claim(mac)) => {
                let contests = *contests + 1;
                *self = Self::Contested { until: now + limits::CONTEST_PAUSE, contests };
                if contests == limits::CONTESTS { Reaction::Report(mac) } else { Reaction::Nothing }
            }
            (Self::Yielding { .. }, Heard::Claim(_)) => {
                *self = Self::Idle;
                Reaction::Nothing
            }
            _ => Reaction::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    /// Lets time pass in steps of 50 ms; returns what is said, with its time in ms.
    fn pass(state: &mut State, role: Role, start: Instant, ms: std::ops::Range<u64>) -> Vec<(u64, Say)> {
        let steps = ms.step_by(50).map(|at| (at, state.step(role, start + Duration::from_millis(at))));
        steps.filter(|(_, say)| *say != Say::Nothing).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_address_is_probed_then_announced_a_few_times() {
        let (mut state, start) = (State::default(), Instant::now());
        let said = pass(&mut state, Role::Lead, start, 0..10_000);
        let probes = [(0, Say::Probe), (100, Say::Probe), (200, Say::Probe)];
        let announcements = [300, 800, 1300, 1800, 2300].map(|at| (at, Say::Announce));
        assert_eq!(said, [probes.as_slice(), &announcements].concat());
        assert_eq!(state.due(), None);
        assert_eq!(state.hear(Heard::Question, start), Reaction::Answer);
        assert_eq!(state.hear(Heard::Probe, start), Reaction::Answer);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_somebody_has_is_not_taken_and_reported_once() {
        let (mut state, start) = (State::default(), Instant::now());
        let mut reports = 0;
        for at in (0..20_000).step_by(50) {
            let now = start + Duration::from_millis(at);
            match state.step(Role::Lead, now) {
                Say::Announce => panic!("announced after {at} ms"),
                Say::Probe => match state.hear(Heard::Claim(OTHER), now) {
                    Reaction::Report(mac) => reports += usize::from(mac == OTHER),
                    reaction => assert_eq!(reaction, Reaction::Nothing),
                },
                Say::Nothing => {}
            }
            assert_eq!(state.hear(Heard::Question, now), Reaction::Nothing);
        }
        assert_eq!(reports, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_yields_answers_hosts_until_the_next_one_announces() {
        let (mut state, start) = (State::default(), Instant::now());
        pass(&mut state, Role::Lead, start, 0..1_000);
        let now = start + Duration::from_secs(1);
        state.step(Role::Follow, now);
        assert_eq!(state.hear(Heard::Question, now), Reaction::Answer);
        assert_eq!(state.hear(Heard::Probe, now), Reaction::Nothing, "the next one may take it");
        let mut again = state;
        assert_eq!(again.step(Role::Lead, now), Say::Announce, "it leads again before anybody took it");
        assert_eq!(state.hear(Heard::Claim(OTHER), now), Reaction::Nothing);
        assert_eq!(state, State::Idle);
        assert_eq!(state.hear(Heard::Question, now), Reaction::Nothing);
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcer_defends_its_address_but_not_too_often() {
        let (mut state, start) = (State::default(), Instant::now());
        pass(&mut state, Role::Lead, start, 0..1_000);
        let reactions: Vec<_> = (0..4)
            .map(|n| state.hear(Heard::Claim(OTHER), start + Duration::from_millis(1_000 + n * 400)))
            .collect();
        use Reaction::{Announce, Nothing};
        assert_eq!(reactions, [Announce, Nothing, Nothing, Announce]);
        state.step(Role::None, start + Duration::from_secs(3));
        assert_eq!(state, State::Idle, "the address is gone");
    }
}
