//! What a component would otherwise take from its surroundings: wall-clock time and randomness.
//! The simulation swaps both, so no other module may ask the operating system for them.

use std::sync::Arc;

use jiff::Timestamp;

/// Wall-clock time, for timestamps in objects. Waiting is done with `tokio::time`, which the
/// simulation pauses by itself.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// Random bits: uids, generated names, jitter.
pub trait Random: Send + Sync + 'static {
    /// 64 uniformly random bits.
    fn next_u64(&self) -> u64;
}

/// The two of them, cheap to clone; every component takes one.
#[derive(Clone)]
pub struct Ambient {
    /// Source of timestamps.
    pub clock: Arc<dyn Clock>,
    /// Source of random bits.
    pub random: Arc<dyn Random>,
}

impl Ambient {
    /// The operating system's clock and random numbers.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), random: Arc::new(SystemRandom) }
    }

    /// The present moment.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A version 4 UUID (RFC 9562) in its usual spelling, as `metadata.uid` wants it.
    pub fn uid(&self) -> String {
        let (high, low) = (self.random.next_u64(), self.random.next_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff
        )
    }

    /// Five characters from the alphabet that Kubernetes uses for generated names: no vowels and
    /// nothing that can be mistaken for another character.
    pub fn name_suffix(&self) -> String {
        const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut bits = self.random.next_u64();
        (0..5)
            .map(|_| {
                let character = ALPHABET[(bits % 27) as usize];
                bits /= 27;
                char::from(character)
            })
            .collect()
    }
}

struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the clock of a process outside of the simulation")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

struct SystemRandom;

impl Random for SystemRandom {
    #[expect(clippy::disallowed_methods, reason = "the randomness of a process outside of the simulation")]
    fn next_u64(&self) -> u64 {
        rand::random()
    }
}
