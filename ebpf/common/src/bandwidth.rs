//! Bandwidth of pods: how much each may send and receive.
//!
//! A limit is a bucket of time. `due` is when everything that has passed is paid for at the limit's rate. A
//! packet passes while that is less than the burst ahead of the clock, and moves it on by its own length: a
//! packet larger than what is left passes once and is paid for by those after it. So the bytes that pass in any
//! interval are at most rate × interval + burst + one packet for each processor, and large packets of
//! segmentation offload pass at any rate.
//!
//! `BANDWIDTH_FILTER` has a bit for each interface that may have an element, so that the others cost a load.

/// Value of `BANDWIDTH`, by the index of the host's end of a pod's interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// For packets of the pod.
    pub egress: Bucket,
    /// For packets to the pod.
    pub ingress: Bucket,
}

/// The limit of one direction.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Units of time that a byte takes, as a fixed-point number with [`PACE_SHIFT`] bits after the point.
    pub pace: u64,
    /// Units of time that `due` may be ahead of the clock; 0 if this direction has no limit.
    pub burst: u64,
    /// The time at which what has passed is paid for.
    pub due: u64,
    /// The tick of the last event about a dropped packet; 0 for none.
    pub told: u32,
    pub reserved: u32,
}

/// Shift from nanoseconds to units of time: sixteenths, which tell single bytes apart at 128 Gbit/s, and last
/// for 36 years of uptime.
pub const UNIT_SHIFT: u32 = 4;
/// Bits after the point of [`Bucket::pace`].
pub const PACE_SHIFT: u32 = 16;

/// Lowest and highest rate in bits per second, those of Kubernetes.
pub const RATE_MIN: u64 = 1_000;
pub const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Nanoseconds of traffic at the limit's rate that may pass at once after a pause. Within a node a round trip
/// takes so little that no window of TCP is small enough for the usual rates: a sender uses up what is there,
/// loses the rest, and is silent for 200 ms (its least retransmission timeout), and from time to time for 400 ms
/// more. What it may send after that time is not lost to it. Over ten seconds, this is 6 % of what may pass.
pub const BURST: u64 = 600_000_000;

/// Ticks between two events about dropped packets of a pod and direction.
pub const QUIET: u32 = 60;
/// Number of attempts to charge a packet while other processors do the same.
pub const TRIES: u32 = 4;
/// Words of `BANDWIDTH_FILTER`: a power of two.
pub const FILTER_WORDS: u32 = 64;

impl Bucket {
    /// Returns a bucket that nothing has passed yet; `rate` is in bits per second, from [`RATE_MIN`] to
    /// [`RATE_MAX`].
    pub const fn new(rate: u64) -> Self {
        const BYTE: u64 = (8_000_000_000 << UNIT_SHIFT) << PACE_SHIFT;
        Self { pace: BYTE / rate, burst: BURST << UNIT_SHIFT, due: 0, told: 0, reserved: 0 }
    }

    /// Returns `true` if both have the same limit.
    pub const fn limits_as(&self, other: &Self) -> bool {
        self.pace == other.pace && self.burst == other.burst
    }
}

/// Returns the time that a packet of `bytes` takes.
#[inline(always)]
pub const fn cost(pace: u64, bytes: u32) -> u64 {
    pace.wrapping_mul(bytes as u64) >> PACE_SHIFT
}

/// Returns the [`Bucket::due`] after a packet that passes; `None` if it does not.
#[inline(always)]
pub const fn admit(due: u64, burst: u64, now: u64, cost: u64) -> Option<u64> {
    if due <= now {
        return Some(now + cost);
    }
    if due - now < burst { Some(due + cost) } else { None }
}

/// Returns the word of `BANDWIDTH_FILTER` for an interface, and its bit.
#[inline(always)]
pub const fn filter(ifindex: u32) -> (u32, u64) {
    (ifindex >> 6 & (FILTER_WORDS - 1), 1 << (ifindex & 63))
}

const _: () = {
    assert!(size_of::<Bucket>() == 32 && size_of::<Bandwidth>() == 64 && align_of::<Bandwidth>() == 8);
    assert!(FILTER_WORDS.is_power_of_two());
    // The longest packet, of 512 KiB, at the lowest rate.
    assert!(Bucket::new(RATE_MIN).pace < u64::MAX / (1 << 19));
    assert!(Bucket::new(RATE_MAX).pace > 0);
};
