//! The maps that limit what pods send and receive.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ebpf_common::bandwidth::{self, Bandwidth, Bucket, FILTER_WORDS};

use super::failed;
use crate::map::{HashTable, MappedArray};
use crate::tables::{Bandwidths, DataPlaneError, PodBandwidth};

/// `BANDWIDTH` and `BANDWIDTH_FILTER`.
pub struct Maps {
    limits: HashTable<u32, Bandwidth>,
    filter: MappedArray<u64>,
}

impl Maps {
    /// Opens the maps pinned in `directory`.
    pub fn open(directory: &Path) -> Result<Self, DataPlaneError> {
        let to = |name: &'static str| move |error: io::Error| failed(format!("opening map {name}"), error);
        Ok(Self {
            limits: HashTable::open(&directory.join("BANDWIDTH")).map_err(to("BANDWIDTH"))?,
            filter: MappedArray::open(&directory.join("BANDWIDTH_FILTER"), true)
                .map_err(to("BANDWIDTH_FILTER"))?,
        })
    }

    /// Makes the limits equal to `wanted`. What has passed an interface counts against its new limit. If there
    /// are too many, those that fit are in force.
    pub fn write(&mut self, wanted: &Bandwidths) -> Result<(), DataPlaneError> {
        let to = |error| failed("reading map BANDWIDTH".to_owned(), error);
        let mut known = BTreeMap::new();
        for index in self.limits.keys().map_err(to)? {
            if wanted.contains_key(&index) {
                known.extend(self.limits.get(&index).map_err(to)?.map(|limit| (index, limit)));
            } else {
                let removed = self.limits.remove(&index);
                removed.map_err(|error| failed("deleting from map BANDWIDTH".to_owned(), error))?;
            }
        }
        let result = changes(wanted, &known).into_iter().try_for_each(|(index, limit)| {
            self.limits.insert(&index, &limit).map_err(|error| match error.raw_os_error() {
                Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => DataPlaneError::Full {
                    service: "bandwidth of pods".to_owned(),
                    map: "BANDWIDTH",
                    limit: self.limits.max_entries(),
                },
                _ => failed("writing map BANDWIDTH".to_owned(), error),
            })
        });
        for (place, word) in filter(wanted.keys().copied()).into_iter().enumerate() {
            if self.filter.get(place) != word {
                self.filter.set(place, word);
            }
        }
        result
    }
}

/// Returns the elements that are missing or have another limit.
fn changes(wanted: &Bandwidths, known: &BTreeMap<u32, Bandwidth>) -> Vec<(u32, Bandwidth)> {
    let change = |(index, wanted): (&u32, &PodBandwidth)| {
        let old = known.get(index);
        let new = Bandwidth {
            egress: bucket(wanted.egress, old.map(|old| &old.egress)),
            ingress: bucket(wanted.ingress, old.map(|old| &old.ingress)),
        };
        let same =
            old.is_some_and(|old| old.egress.limits_as(&new.egress) && old.ingress.limits_as(&new.ingress));
        (!same).then_some((*index, new))
    };
    wanted.iter().filter_map(change).collect()
}

/// Returns the bucket of a rate; nothing that has passed is forgotten.
fn bucket(rate: Option<u64>, old: Option<&Bucket>) -> Bucket {
    let rate = rate.map(|rate| rate.clamp(bandwidth::RATE_MIN, bandwidth::RATE_MAX));
    let old = old.copied().unwrap_or_default();
    Bucket { due: old.due, told: old.told, ..rate.map_or_else(Bucket::default, Bucket::new) }
}

/// Returns the words of `BANDWIDTH_FILTER`.
fn filter(interfaces: impl Iterator<Item = u32>) -> [u64; FILTER_WORDS as usize] {
    let mut words = [0; FILTER_WORDS as usize];
    for index in interfaces {
        let (word, bit) = bandwidth::filter(index);
        words[word as usize] |= bit;
    }
    words
}

#[cfg(test)]
mod tests {
    use ebpf_common::bandwidth::{BURST, RATE_MAX, RATE_MIN, UNIT_SHIFT, admit, cost};

    use super::*;

    /// Sends packets of these lengths at these nanoseconds; returns the bytes that pass.
    fn passed(bucket: &mut Bucket, packets: impl IntoIterator<Item = (u64, u32)>) -> u64 {
        let mut sum = 0;
        for (time, bytes) in packets {
            let now = time << UNIT_SHIFT;
            if let Some(due) = admit(bucket.due, bucket.burst, now, cost(bucket.pace, bytes)) {
                bucket.due = due;
                sum += u64::from(bytes);
            }
        }
        sum
    }

    /// Returns the bytes of a time at a rate.
    fn bytes(rate: u64, nanoseconds: u64) -> u64 {
        u64::try_from(u128::from(rate) * u128::from(nanoseconds) / 8_000_000_000).unwrap()
    }

    #[test]
    fn a_bucket_lets_its_rate_pass_and_no_more_than_the_burst_beyond_it() {
        for rate in [8_000, 1_000_000, 10_000_000, 1_000_000_000, 40_000_000_000] {
            for length in [60, 1_514, 65_226] {
                let mut bucket = Bucket::new(rate);
                // A thousand times the time of a packet, or of the burst, at twice the rate.
                let step = u64::from(length) * 8_000_000_000 / (2 * rate);
                let count = (1_000 * BURST / step.max(1)).clamp(1_000, 1_000_000);
                let sum = passed(&mut bucket, (1..=count).map(|n| (n * step, length)));
                let elapsed = (count - 1) * step;
                let most = bytes(rate, elapsed + BURST) + 2 * u64::from(length);
                let least = bytes(rate, elapsed) * 99 / 100;
                assert!((least..=most).contains(&sum), "{rate}: {sum} of {length}, not {least} to {most}");
            }
        }
    }

    #[test]
    fn a_pause_saves_up_a_burst_and_no_more() {
        const RATE: u64 = 10_000_000;
        let mut bucket = Bucket::new(RATE);
        for start in [5_000_000_000, 3_600_000_000_000, 86_400_000_000_000] {
            let sum = passed(&mut bucket, (0..10_000).map(|_| (start, 1_000)));
            let burst = bytes(RATE, BURST);
            assert!((burst..=burst + 1_000).contains(&sum), "{sum} after {start}");
        }
    }

    #[test]
    fn a_packet_larger_than_the_burst_passes_once_and_is_paid_for() {
        let mut bucket = Bucket::new(RATE_MIN);
        // 65,000 bytes take 520 s at 1 kbit/s.
        let times = (0..1_000).map(|second| (second * 1_000_000_000, 65_000));
        assert_eq!(passed(&mut bucket, times), 2 * 65_000);
    }

    #[test]
    fn the_lowest_and_the_highest_rate_are_exact_enough() {
        let millisecond = 1_000_000 << UNIT_SHIFT;
        assert_eq!(cost(Bucket::new(RATE_MIN).pace, 1), 8 * millisecond);
        assert_eq!(cost(Bucket::new(1_000_000_000).pace, 125_000), millisecond);
        assert_eq!(cost(Bucket::new(RATE_MAX).pace, 125), 0, "more than any interface carries");
    }

    #[test]
    fn only_new_limits_are_written_and_what_has_passed_stays() {
        let limit = |egress, ingress| PodBandwidth { egress, ingress };
        let wanted = Bandwidths::from([(7, limit(Some(1_000_000), None)), (8, limit(None, Some(5_000)))]);
        let mut known: BTreeMap<_, _> = changes(&wanted, &BTreeMap::new()).into_iter().collect();
        assert_eq!(known.keys().copied().collect::<Vec<_>>(), [7, 8]);
        assert_eq!((known[&7].ingress.burst, known[&8].egress.burst), (0, 0), "not limited");
        known.get_mut(&7).unwrap().egress.due = 99;
        assert_eq!(changes(&wanted, &known), []);
        let faster = Bandwidths::from([(7, limit(Some(2_000_000), None)), (8, limit(None, Some(5_000)))]);
        let [(7, new)] = changes(&faster, &known)[..] else { panic!("one differs") };
        assert_eq!((new.egress.due, new.egress.pace), (99, Bucket::new(2_000_000).pace));
    }

    #[test]
    fn the_filter_has_the_bits_of_limited_interfaces() {
        let words = filter([3, 64, 4_096 + 65].into_iter());
        assert_eq!((words[0], words[1]), (1 << 3, 3));
        assert!(words[2..].iter().all(|word| *word == 0));
    }
}
