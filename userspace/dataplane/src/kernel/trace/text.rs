//! Names for the numbers in log records. A program knows services, interfaces and reasons as numbers, and
//! logs `service#7`; here that becomes `service default/web`.

use ebpf_common::event::{hook, kind};
use ebpf_common::trace::{call, outcome};

use crate::inspect::{InspectError, Inspector, interface_name};
use crate::map::{HashTable, Name};

/// Bits of a segment's flags, as in `ebpf/programs`.
const FLAGS: [(u64, &str); 4] = [(1, "FIN"), (2, "SYN"), (4, "RST"), (16, "ACK")];

/// The sources of names.
pub struct Names {
    services: HashTable<u32, Name>,
}

impl Names {
    /// Opens the map of services' names.
    pub fn new(inspector: &Inspector) -> Result<Self, InspectError> {
        Ok(Self { services: inspector.table("SERVICE_NAMES")? })
    }

    /// Returns a record with names in place of numbers.
    pub fn resolve(&self, record: &str) -> String {
        resolve(record, |kind, number| match kind {
            "service" => {
                let name = self.services.get(&(number as u32)).ok().flatten();
                Some(format!("service {}", name.map_or_else(|| format!("?{number}"), |name| name.text())))
            }
            "interface" => {
                let name = interface_name(number as u32);
                Some(format!("interface {}", name.unwrap_or_else(|| number.to_string())))
            }
            _ => label(kind, number),
        })
    }
}

/// Returns the name of a number that does not depend on the node; `None` for unknown words.
fn label(kind: &str, number: u64) -> Option<String> {
    let of = |labels: &[&str]| Some((*labels.get(usize::try_from(number).ok()?)?).to_owned());
    match kind {
        "hook" => of(&hook::LABELS),
        "call" => of(&call::LABELS),
        "outcome" => of(&outcome::LABELS),
        "reason" => of(&kind::LABELS),
        "protocol" => Some(match number {
            1 | 58 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            132 => "sctp".to_owned(),
            other => format!("protocol {other}"),
        }),
        "flags" => {
            let set: Vec<&str> =
                FLAGS.iter().filter(|(bit, _)| number & bit != 0).map(|(_, name)| *name).collect();
            Some(if set.is_empty() { String::new() } else { format!("[{}]", set.join(" ")) })
        }
        "error" => Some(std::io::Error::from_raw_os_error(i32::try_from(number).ok()?).to_string()),
        _ => None,
    }
}

/// Replaces each `word#number` by the result of `name`.
fn resolve(record: &str, name: impl Fn(&str, u64) -> Option<String>) -> String {
    let mut text = String::with_capacity(record.len());
    let mut rest = record;
    while let Some(at) = rest.find('#') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        let word = before.rfind(|c: char| !c.is_ascii_lowercase()).map_or(before, |end| &before[end + 1..]);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        match after[..digits].parse().ok().and_then(|number| name(word, number)) {
            Some(found) => {
                text += &before[..before.len() - word.len()];
                text += &found;
                rest = &after[digits..];
            }
            None => {
                text += before;
                text.push('#');
                rest = after;
            }
        }
    }
    text += rest;
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_their_names() {
        let text = resolve("cpu 0 hook#1 interface#7: protocol#6 flags#18", |kind, number| match kind {
            "interface" => Some("interface eth0".to_owned()),
            _ => label(kind, number),
        });
        assert_eq!(text, "cpu 0 pod interface eth0: tcp [SYN ACK]");
        assert_eq!(resolve("decision: outcome#1 (reason#3)", label), "decision: dropped (source_range)");
        assert_eq!(resolve("call#0: protocol#17 flags#0", label), "connect: udp");
        assert_eq!(resolve("error#111", label), "Connection refused (os error 111)");
    }

    #[test]
    fn unnamed_numbers_are_printed() {
        assert_eq!(resolve("a#b c# odd#7 hook#99 #", label), "a#b c# odd#7 hook#99 #");
    }
}
