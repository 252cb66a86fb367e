//! The flow that the tracing copy of the programs logs. The copy is the same object, loaded with other
//! constants: a log level, and [`Traced`] as words.

/// The connection, or the exchange of datagrams, that is traced.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// Its source; zero for any. A v4 address uses the first word; in the form of packets, like the ports.
    pub source: [u32; 4],
    pub destination: [u32; 4],
    /// Zero for any.
    pub source_port: u16,
    pub destination_port: u16,
    /// 4 or 6.
    pub family: u16,
    /// IP protocol number.
    pub protocol: u16,
}

impl Traced {
    /// Number of words.
    pub const WORDS: usize = size_of::<Self>() / 4;

    /// Returns the constant that the programs are loaded with.
    pub const fn words(&self) -> [u32; Self::WORDS] {
        let (source, destination) = (self.source, self.destination);
        [
            source[0],
            source[1],
            source[2],
            source[3],
            destination[0],
            destination[1],
            destination[2],
            destination[3],
            self.source_port as u32 | (self.destination_port as u32) << 16,
            self.family as u32 | (self.protocol as u32) << 16,
        ]
    }

    /// Returns the flow of a constant.
    #[inline(always)]
    pub const fn from_words(words: &[u32; Self::WORDS]) -> Self {
        Self {
            source: [words[0], words[1], words[2], words[3]],
            destination: [words[4], words[5], words[6], words[7]],
            source_port: words[8] as u16,
            destination_port: (words[8] >> 16) as u16,
            family: words[9] as u16,
            protocol: (words[9] >> 16) as u16,
        }
    }

    /// Returns `true` if the family and the protocol are those of the flow.
    #[inline(always)]
    pub fn is_of(&self, family: u8, protocol: u8) -> bool {
        self.family == family as u16 && self.protocol == protocol as u16
    }

    /// Returns `true` if the address and the port are the flow's destination.
    #[inline(always)]
    pub fn goes_to(&self, address: &[u32; 4], port: u16) -> bool {
        same(&self.destination, address) && self.destination_port == port
    }

    /// Returns `true` if the flow may have this address and port as its source.
    #[inline(always)]
    pub fn comes_from(&self, address: &[u32; 4], port: u16) -> bool {
        let any = same(&self.source, &[0; 4]);
        (any || same(&self.source, address)) && (self.source_port == 0 || self.source_port == port)
    }
}

/// Compares word by word: the compiler would call a function that compares bytes.
#[inline(always)]
fn same(one: &[u32; 4], other: &[u32; 4]) -> bool {
    one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3]
}

/// The outcomes in log records, as numbers that the reader replaces by names.
pub mod outcome {
    /// Passed unchanged to the next program, or to the stack.
    pub const PASSED: u32 = 0;
    pub const DROPPED: u32 = 1;
    /// The sender gets an error.
    pub const REFUSED: u32 = 2;
    /// Rewritten and sent out of an interface.
    pub const SENT: u32 = 3;
    /// Rewritten and passed to the stack.
    pub const TO_STACK: u32 = 4;
    /// Labels in the order of the numbers.
    pub const LABELS: [&str; 5] = [
        "passed on as it is",
        "dropped",
        "refused, and the sender is told",
        "rewritten and sent out",
        "rewritten and left to the stack",
    ];
}

/// System calls that are traced.
pub mod call {
    pub const CONNECT: u32 = 0;
    pub const SENDMSG: u32 = 1;
    /// Labels in the order of the numbers.
    pub const LABELS: [&str; 2] = ["connect", "sendmsg"];
}

const _: () = assert!(size_of::<Traced>() == 40 && Traced::WORDS == 10);

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: Traced = Traced {
        source: [1, 0, 0, 0],
        destination: [2, 0, 0, 0],
        source_port: 40_000,
        destination_port: 443,
        family: 4,
        protocol: 6,
    };

    #[test]
    fn a_flow_survives_the_way_through_a_constant() {
        assert_eq!(Traced::from_words(&FLOW.words()), FLOW);
    }

    #[test]
    fn ends_match_exactly_where_they_are_given() {
        assert!(FLOW.is_of(4, 6) && !FLOW.is_of(6, 6) && !FLOW.is_of(4, 17));
        assert!(FLOW.goes_to(&[2, 0, 0, 0], 443));
        assert!(!FLOW.goes_to(&[2, 0, 0, 0], 80) && !FLOW.goes_to(&[3, 0, 0, 0], 443));
        assert!(FLOW.comes_from(&[1, 0, 0, 0], 40_000));
        assert!(!FLOW.comes_from(&[1, 0, 0, 0], 1) && !FLOW.comes_from(&[1, 0, 0, 9], 40_000));
        let any = Traced { source: [0; 4], source_port: 0, ..FLOW };
        assert!(any.comes_from(&[9, 0, 0, 0], 1) && !any.goes_to(&[9, 0, 0, 0], 443));
    }
}
