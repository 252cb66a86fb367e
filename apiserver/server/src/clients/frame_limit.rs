//! Bound on the frames that one HTTP/2 connection may send besides requests, their bodies and what answers
//! need, against floods of PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown and empty frames.
//!
//! Every frame that is read costs; progress earns: a request that begins, bytes of a body that somebody
//! read, bytes of answers that the client took. So no list of harmful frames is needed, and whatever a
//! frame is, there are only so many of them for each thing that a client wants.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::limits;

/// Returns the cost of a frame with a payload of this many bytes.
pub const fn cost(payload: u64) -> u64 {
    limits::FRAME_COST + payload / limits::FRAME_BYTES_FREE
}

/// The allowance that a connection has earned by progress since it was last added to its [`Allowance`].
#[derive(Debug, Default)]
pub struct Earnings(AtomicU64);

impl Earnings {
    fn add(&self, earned: u64) {
        self.0.fetch_add(earned, Ordering::Relaxed);
    }

    /// A request begins.
    pub fn request(&self) {
        self.add(limits::REQUEST_EARNS);
    }

    /// Adds the earnings of a part of a body that was read, which came in one frame.
    pub fn body(&self, bytes: usize) {
        if bytes > 0 {
            self.add(cost(bytes as u64));
        }
    }

    /// The client took this many bytes.
    pub fn sent(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    /// Returns the earnings and resets them, so that they count once.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// The amount that a connection may spend at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    left: u64,
    /// Until when time has been paid for.
    paid: Instant,
}

impl Allowance {
    /// Returns the allowance of a new connection.
    pub const fn new(now: Instant) -> Self {
        Self { left: limits::FRAMES_BURST, paid: now }
    }

    /// Adds the earnings and those of time, and subtracts `cost`. Returns `false` if there was less.
    pub fn spend(&mut self, now: Instant, earned: u64, cost: u64) -> bool {
        let millis = u64::try_from(now.saturating_duration_since(self.paid).as_millis()).unwrap_or(u64::MAX);
        // Less than a millisecond is paid for later.
        if millis > 0 {
            self.paid = now;
        }
        let brings = millis.saturating_mul(limits::FRAMES_RATE) / 1_000;
        // Time alone brings no more than a burst; earnings by progress last longer, as clients confirm what
        // they have read later than it was sent.
        let left = self.left.max(self.left.saturating_add(brings).min(limits::FRAMES_BURST));
        let left = left.saturating_add(earned).min(limits::FRAMES_EARNED);
        self.left = left.saturating_sub(cost);
        cost <= left
    }
}

/// Finds the frames in the bytes read from a connection, after its preface.
#[derive(Debug, Default)]
pub struct Frames {
    /// The bytes received of the next frame's head: the length of its payload, and its type.
    head: [u8; 4],
    /// Bytes of that head: at most nine.
    seen: u8,
    /// Bytes of the payload that are still to come.
    rest: usize,
}

impl Frames {
    /// Returns the cost of these bytes: each frame is paid for as a whole when its head has arrived.
    pub fn read(&mut self, bytes: &[u8]) -> u64 {
        self.sum(bytes, |_, payload| cost(payload))
    }

    /// Returns the cost of these bytes on a connection on which frames with data are limited in another way, and cost
    /// nothing.
    pub fn read_control(&mut self, bytes: &[u8]) -> u64 {
        self.sum(bytes, |kind, payload| if kind == DATA { 0 } else { cost(payload) })
    }

    fn sum(&mut self, mut bytes: &[u8], cost: impl Fn(u8, u64) -> u64) -> u64 {
        let mut costs = 0;
        while !bytes.is_empty() {
            if self.rest > 0 {
                let part = self.rest.min(bytes.len());
                self.rest -= part;
                bytes = &bytes[part..];
                continue;
            }
            if let Some(byte) = self.head.get_mut(usize::from(self.seen)) {
                *byte = bytes[0];
            }
            self.seen += 1;
            bytes = &bytes[1..];
            if self.seen == HEAD {
                self.seen = 0;
                let [a, b, c, kind] = self.head;
                self.rest = u32::from_be_bytes([0, a, b, c]) as usize;
                costs += cost(kind, self.rest as u64);
            }
        }
        costs
    }
}

/// Bytes of the head of a frame (RFC 9113, section 4.1).
const HEAD: u8 = 9;
/// The type of frames with data.
const DATA: u8 = 0;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PING: u64 = cost(8);
    const WINDOW_UPDATE: u64 = cost(4);

    fn frame(payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&length[1..], &[0x42, 0, 0, 0, 0, 0], &vec![0; payload][..]].concat()
    }

    /// Returns how many of 100,000 frames pass that arrive at intervals of `pause`.
    fn pass(cost: u64, pause: Duration) -> u32 {
        let mut now = Instant::now();
        let (mut allowance, mut passed) = (Allowance::new(now), 0);
        while passed < 100_000 && allowance.spend(now, 0, cost) {
            passed += 1;
            now += pause;
        }
        passed
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let payloads = [0, 1, 8, 16_384, 0, 300];
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(*payload)).collect();
        let expected: u64 = payloads.iter().map(|payload| cost(*payload as u64)).sum();
        for size in [1, 2, 3, 8, 9, 10, 4096, bytes.len()] {
            let mut frames = Frames::default();
            let costs: u64 = bytes.chunks(size).map(|part| frames.read(part)).sum();
            assert_eq!(costs, expected, "in parts of {size} bytes");
            assert_eq!((frames.seen, frames.rest), (0, 0));
        }
    }

    #[test]
    fn a_flood_ends_after_its_burst_and_pings_now_and_then_never_do() {
        let burst = u32::try_from(limits::FRAMES_BURST / PING).unwrap();
        assert_eq!(pass(PING, Duration::ZERO), burst);
        assert!(pass(PING, Duration::from_micros(500)) < 2 * burst, "what comes fast is no less a flood");
        assert_eq!(pass(PING, Duration::from_millis(100)), 100_000);
    }

    #[test]
    fn a_connection_that_waited_long_has_saved_no_more_than_a_burst() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        assert!(allowance.spend(now, 0, limits::FRAMES_BURST));
        assert!(!allowance.spend(now, 0, PING));
        now += Duration::from_secs(100_000);
        assert!(!allowance.spend(now, 0, limits::FRAMES_BURST + 1));
    }

    /// Go's client confirms each 4 KiB that it reads, to the stream and to the connection, long after they
    /// were sent; others confirm each event of a watch.
    #[test]
    fn window_updates_of_a_reading_client_are_free() {
        let now = Instant::now();
        for (piece, ahead) in [(4096_u64, 16 << 20), (200, 64 << 10)] {
            let (mut allowance, mut unconfirmed) = (Allowance::new(now), 0);
            for _ in 0..(300 << 20) / piece {
                unconfirmed += piece;
                assert!(allowance.spend(now, piece, 0));
                while unconfirmed >= ahead {
                    unconfirmed -= piece;
                    assert!(allowance.spend(now, 0, 2 * WINDOW_UPDATE), "pieces of {piece} bytes");
                }
            }
        }
    }

    #[test]
    fn bodies_that_are_read_cost_nothing_and_answers_to_pings_earn_no_more_pings() {
        let earnings = Earnings::default();
        for bytes in [1, 100, 16_384] {
            earnings.body(bytes);
            assert_eq!(earnings.take(), cost(bytes as u64));
        }
        earnings.body(0);
        assert_eq!(earnings.take(), 0);
        earnings.sent(9 + 8);
        assert!(2 * earnings.take() < PING);
        let now = Instant::now();
        let mut allowance = Allowance::new(now);
        let passed = (0..100_000).take_while(|_| allowance.spend(now, 17, PING)).count();
        assert!(passed < 2 * usize::try_from(limits::FRAMES_BURST / PING).unwrap(), "{passed}");
    }
}
