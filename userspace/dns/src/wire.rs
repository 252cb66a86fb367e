//! Numbers and positions of the wire format (RFC 1035, RFC 6891), and the walk over the records of a message.

/// Length of the header.
pub const HEADER: usize = 12;

pub const A: u16 = 1;
pub const NS: u16 = 2;
pub const CNAME: u16 = 5;
pub const SOA: u16 = 6;
pub const PTR: u16 = 12;
pub const HINFO: u16 = 13;
pub const TXT: u16 = 16;
pub const AAAA: u16 = 28;
pub const SRV: u16 = 33;
pub const OPT: u16 = 41;
pub const IXFR: u16 = 251;
pub const AXFR: u16 = 252;
pub const ANY: u16 = 255;

/// The class of the Internet.
pub const INTERNET: u16 = 1;

pub const NO_ERROR: u8 = 0;
pub const FORMAT_ERROR: u8 = 1;
pub const SERVER_FAILURE: u8 = 2;
pub const NAME_ERROR: u8 = 3;
pub const NOT_IMPLEMENTED: u8 = 4;
pub const REFUSED: u8 = 5;
/// An EDNS version that is not supported: 16, whose upper bits stand in the OPT record.
pub const BAD_VERSION: u8 = 16;

/// The flags of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    pub const RESPONSE: u16 = 0x8000;
    pub const AUTHORITATIVE: u16 = 0x0400;
    pub const TRUNCATED: u16 = 0x0200;
    pub const RECURSION_DESIRED: u16 = 0x0100;
    pub const RECURSION_AVAILABLE: u16 = 0x0080;
    pub const AUTHENTIC: u16 = 0x0020;
    pub const CHECKING_DISABLED: u16 = 0x0010;

    pub fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }

    pub fn opcode(self) -> u8 {
        (self.0 >> 11) as u8 & 0xf
    }

    /// Returns the response code, without the upper bits of EDNS.
    pub fn code(self) -> u8 {
        self.0 as u8 & 0xf
    }

    /// Returns the flags of a query that its answer repeats.
    pub fn repeated(self) -> u16 {
        self.0 & (Self::RECURSION_DESIRED | Self::CHECKING_DISABLED)
    }
}

/// Returns the 16 bits at `at`, which must lie within.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the 32 bits at `at`, which must lie within.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The position of a record in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Start of the name.
    pub start: usize,
    /// Start of type, class, TTL and length.
    pub fixed: usize,
    pub kind: u16,
    /// End of the record.
    pub end: usize,
}

impl Record {
    /// Position of the TTL.
    pub fn ttl(self) -> usize {
        self.fixed + 4
    }

    /// Position of the data.
    pub fn data(self) -> usize {
        self.fixed + 10
    }
}

/// Finds the end of the name at `at`. A compressed name ends at its pointer, which is not followed.
pub fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0.. => return Some(at + 2),
            _ => return None,
        }
    }
}

/// Finds the record at `at`; `None` if the message ends before it does.
pub fn record_at(message: &[u8], at: usize) -> Option<Record> {
    let fixed = name_end(message, at)?;
    let head = message.get(fixed..fixed + 10)?;
    let end = fixed + 10 + usize::from(u16_at(head, 8));
    (end <= message.len()).then(|| Record { start: at, fixed, kind: u16_at(head, 0), end })
}

/// Returns the records of a message that begin at `at`, in the order in which they stand.
pub fn records(message: &[u8], mut at: usize) -> impl Iterator<Item = Record> {
    std::iter::from_fn(move || {
        let record = record_at(message, at)?;
        at = record.end;
        Some(record)
    })
}

/// Returns the mnemonic of a type for metrics; types without one are counted together, as CoreDNS does.
pub fn kind_name(kind: u16) -> &'static str {
    match kind {
        A => "A",
        NS => "NS",
        CNAME => "CNAME",
        SOA => "SOA",
        PTR => "PTR",
        15 => "MX",
        TXT => "TXT",
        AAAA => "AAAA",
        SRV => "SRV",
        35 => "NAPTR",
        43 => "DS",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        50 => "NSEC3",
        65 => "HTTPS",
        IXFR => "IXFR",
        AXFR => "AXFR",
        ANY => "ANY",
        _ => "other",
    }
}

/// Returns `true` for a code that says that asking has failed, and nothing about the name.
pub fn is_failure(code: u8) -> bool {
    !matches!(code, NO_ERROR | NAME_ERROR)
}

/// The mnemonics of response codes from 0.
const CODES: [&str; 11] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "YXDOMAIN", "YXRRSET", "NXRRSET",
    "NOTAUTH", "NOTZONE",
];

/// Returns a response code by its mnemonic or number.
pub fn code(text: &str) -> Option<u8> {
    let number = text.parse().ok().filter(|code| usize::from(*code) < CODES.len());
    number
        .or_else(|| (0..).zip(CODES).find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(code, _)| code))
}

/// Returns the mnemonic of a response code.
pub fn code_name(code: u8) -> &'static str {
    if code == BAD_VERSION { "BADVERS" } else { CODES.get(usize::from(code)).copied().unwrap_or("other") }
}
