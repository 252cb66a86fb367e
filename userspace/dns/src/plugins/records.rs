//! Records as lines of a zone file (RFC 1035, 5): one line, names relative to the root.

use hickory_proto::rr::rdata::{CNAME, HINFO, MX, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name as RecordName, RData, Record};

/// Lifetime in seconds of a record that names none, as in CoreDNS.
const TTL: u32 = 3_600;
/// Maximum length of a character string.
const STRING: usize = 255;

/// The types of records that can be written.
pub const KINDS: [&str; 10] = ["A", "AAAA", "CNAME", "HINFO", "MX", "NS", "PTR", "SOA", "SRV", "TXT"];

/// Parses a record, such as `example.org. 60 IN A 192.0.2.1`. `None` if it is none.
pub fn parse(text: &str) -> Option<Record> {
    let words = words(text)?;
    let (name, mut rest) = words.split_first()?;
    let (name, mut ttl, mut kind) = (parse_name(name)?, TTL, None);
    // Lifetime and class stand in any order.
    while let Some((word, behind)) = rest.split_first() {
        rest = behind;
        if let Ok(seconds) = word.parse() {
            ttl = seconds;
        } else if !word.eq_ignore_ascii_case("IN") {
            kind = Some(word.to_ascii_uppercase());
            break;
        }
    }
    let data = data(&kind?, rest)?;
    (ttl <= i32::MAX as u32).then(|| Record::from_rdata(name, ttl, data))
}

fn data(kind: &str, words: &[String]) -> Option<RData> {
    Some(match (kind, words) {
        ("A", [address]) => RData::A(address.parse::<std::net::Ipv4Addr>().ok()?.into()),
        ("AAAA", [address]) => RData::AAAA(address.parse::<std::net::Ipv6Addr>().ok()?.into()),
        ("CNAME", [target]) => RData::CNAME(CNAME(parse_name(target)?)),
        ("NS", [target]) => RData::NS(NS(parse_name(target)?)),
        ("PTR", [target]) => RData::PTR(PTR(parse_name(target)?)),
        ("MX", [preference, target]) => RData::MX(MX::new(preference.parse().ok()?, parse_name(target)?)),
        ("SRV", [priority, weight, port, target]) => RData::SRV(SRV::new(
            priority.parse().ok()?,
            weight.parse().ok()?,
            port.parse().ok()?,
            parse_name(target)?,
        )),
        ("HINFO", [cpu, os]) if cpu.len().max(os.len()) <= STRING => {
            RData::HINFO(HINFO::new(cpu.clone(), os.clone()))
        }
        ("TXT", [_, ..]) if words.iter().all(|word| word.len() <= STRING) => {
            RData::TXT(TXT::new(words.to_vec()))
        }
        ("SOA", [server, owner, serial, refresh, retry, expire, minimum]) => RData::SOA(SOA::new(
            parse_name(server)?,
            parse_name(owner)?,
            serial.parse().ok()?,
            seconds(refresh)?,
            seconds(retry)?,
            seconds(expire)?,
            minimum.parse().ok()?,
        )),
        _ => return None,
    })
}

fn seconds(text: &str) -> Option<i32> {
    text.parse().ok().filter(|seconds| *seconds >= 0)
}

fn parse_name(text: &str) -> Option<RecordName> {
    // The same bounds as for names that are asked for.
    let name = crate::name::Name::parse(text).ok()?;
    super::response::question_name(&name)
}

/// Splits a record into words. Quotation marks hold words together; parentheses, which join lines elsewhere, count as
/// spaces; a comment begins with a semicolon.
fn words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => (quoted, begun) = (!quoted, true),
            '\\' => {
                word.push(chars.next()?);
                begun = true;
            }
            ';' if !quoted => break,
            c if !quoted && (c.is_whitespace() || "()".contains(c)) => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    (!quoted).then_some(words)
}
