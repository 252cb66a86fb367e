//! Wall-clock time and randomness as explicit dependencies. The simulation replaces both, so no other module
//! may ask the operating system for them.

use std::sync::Arc;

use jiff::Timestamp;

/// Wall-clock time, for timestamps in objects. Waiting uses `tokio::time`, which the simulation pauses
/// separately.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// Source of random bits for uids, generated names and jitter.
pub trait Random: Send + Sync + 'static {
    /// Returns 64 uniformly random bits.
    fn next_u64(&self) -> u64;
}

/// Clock and randomness. Cheap to clone; every component takes one.
#[derive(Clone)]
pub struct Ambient {
    /// Source of timestamps.
    pub clock: Arc<dyn Clock>,
    /// Source of random bits.
    pub random: Arc<dyn Random>,
}

impl Ambient {
    /// Returns the operating system's clock and random numbers.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), random: Arc::new(SystemRandom) }
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns a version 4 UUID (RFC 9562) in its usual notation, as used for `metadata.uid`.
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

    /// Returns five characters from the alphabet that Kubernetes uses for generated names: no vowels and no
    /// look-alikes.
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
