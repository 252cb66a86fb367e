//! Fields of messages that a reader has no use for.

use crate::table::{Message, message};

/// Fields that nobody reads, by the place of their message's first field in the table. A type that is read without them has them unset.
#[derive(Debug, PartialEq, Eq)]
pub struct Unread(Vec<(u16, u64)>);

impl Unread {
    /// Returns fields by the name of their message, such as `core/v1.PodSpec`, and their names in JSON. Fields of an inlined
    /// message are named with that one: those of a volume with `core/v1.VolumeSource`.
    ///
    /// # Panics
    ///
    /// Panics if there is no such message or field.
    pub fn new(fields: &[(&str, &[&str])]) -> Self {
        let bits = |(name, fields): &(&str, &[&str])| {
            let message = message(name).unwrap_or_else(|| panic!("there is no message {name}"));
            let bit = |field: &&str| {
                let place = message.fields().iter().position(|known| known.name() == *field);
                1 << place.unwrap_or_else(|| panic!("{name} has no field {field}"))
            };
            (message.start(), fields.iter().map(bit).fold(0, |all, bit: u64| all | bit))
        };
        let mut all: Vec<_> = fields.iter().map(bits).collect();
        all.sort_unstable();
        Self(all)
    }

    /// Returns a bit for each field of a message that nobody reads, by its place.
    pub(super) fn of(&self, message: Message) -> u64 {
        let found = self.0.binary_search_by_key(&message.start(), |(start, _)| *start);
        found.map_or(0, |found| self.0[found].1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::read::{Encoded, Reading};
    use crate::wire::Backward;

    fn part(number: u16, content: &[u8]) -> Vec<u8> {
        let mut out = Backward::default();
        out.bytes(number, content);
        out.finish()
    }

    #[test]
    fn unread_fields_are_absent_and_all_others_are_as_before() {
        static UNREAD: std::sync::LazyLock<Unread> = std::sync::LazyLock::new(|| {
            Unread::new(&[
                ("core/v1.Volume", &["name"]),
                ("core/v1.VolumeSource", &["hostPath", "emptyDir"]),
                ("core/v1.PodSpec", &["securityContext"]),
            ])
        });
        // An emptyDir in the source of a volume with a name, twice, and the name of a node.
        let source = [part(2, &part(1, b"Memory")), part(3, &part(1, b"disk"))].concat();
        let volume = [part(1, b"v"), part(2, &source)].concat();
        let spec = [part(1, &volume), part(1, &volume), part(10, b"n"), part(14, &[])].concat();
        let encoded =
            Encoded { api_version: "", kind: "", message: message("core/v1.PodSpec").unwrap(), bytes: &spec };
        let reading = Reading { unread: Some(&UNREAD), ..Reading::default() };
        let mut whole: Value = encoded.read(Reading::default()).unwrap();
        let read: Value = encoded.read(reading).unwrap();
        for volume in whole["volumes"].as_array_mut().unwrap() {
            let volume = volume.as_object_mut().unwrap();
            assert!(volume.remove("name").is_some() && volume.remove("emptyDir").is_some());
        }
        assert!(whole.as_object_mut().unwrap().remove("securityContext").is_some());
        assert_eq!(read, whole);
        assert_eq!(read["volumes"][1]["gcePersistentDisk"]["pdName"], "disk");
    }
}
