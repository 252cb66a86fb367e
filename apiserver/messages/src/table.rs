//! The messages. The statics are arrays of integers in read-only memory, as those of the type graph.

use std::fmt;

/// A piece of `NAMES`: where, and how long.
#[derive(Clone, Copy)]
struct Name(u32, u8);

impl Name {
    #[inline]
    fn text(self) -> &'static str {
        let start = self.0 as usize;
        &NAMES[start..start + usize::from(self.1)]
    }
}

/// The multiplicity of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    One,
    /// Once for each item, never packed.
    List,
    /// Once for each entry, a message of key and value.
    Map,
}

/// The type of a field's values. The numbers are indexes for [`Kind::message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Flag,
    Int32,
    Int64,
    Double,
    /// Base64 in JSON.
    Bytes,
    Message(u16),
    /// A list in a message of its own: `ExtraValue`, `Verbs`.
    Texts,
    /// Whole seconds.
    Time,
    /// Microseconds.
    MicroTime,
    Quantity,
    IntOrString,
    /// JSON text in a message: `RawExtension`, `JSON`, `FieldsV1`.
    Raw,
    /// `JSONSchemaPropsOrArray`
    SchemaOrList(u16),
    /// `JSONSchemaPropsOrBool`
    SchemaOrFlag(u16),
    /// `JSONSchemaPropsOrStringArray`
    SchemaOrTexts(u16),
}

impl Kind {
    /// The message that it is, or that is one of its choices.
    pub fn message(self) -> Option<Message> {
        match self {
            Self::Message(i) | Self::SchemaOrList(i) | Self::SchemaOrFlag(i) | Self::SchemaOrTexts(i) => {
                Some(at(i))
            }
            _ => None,
        }
    }
}

struct RawMessage {
    name: Name,
    start: u16,
    count: u16,
    members: u16,
    member_count: u8,
    /// The order in JSON is not that of the numbers.
    reordered: bool,
    /// True if its objects contain their type.
    typed: bool,
    /// Fields, by their place on the wire, that JSON has with their zero if they were not set.
    implied: u64,
}

/// A field as JSON has it. By name.
struct Member {
    name: Name,
    /// Its place in the order of JSON.
    place: u8,
    /// Index among all fields.
    field: u16,
}

/// A field of a message.
pub struct Field {
    name: Name,
    go_type: Name,
    /// Its number on the wire.
    pub number: u16,
    /// Its place in JSON among the fields of its message.
    pub place: u8,
    /// Absent and zero are different.
    pub pointer: bool,
    /// Go's JSON has it even where it is zero (and `null` where it is an absent pointer).
    pub always: bool,
    pub shape: Shape,
    pub kind: Kind,
}

impl Field {
    /// Returns its name in JSON; empty if the fields of its message are inlined in the parent.
    #[inline]
    pub fn name(&self) -> &'static str {
        self.name.text()
    }

    /// The name of the Go type of a scalar, or of the scalars in a list or map: `v1.Protocol`; `None` for
    /// types of the language.
    pub fn go_type(&self) -> Option<&'static str> {
        Some(self.go_type.text()).filter(|name| !name.is_empty())
    }
}

/// The JSON for a field that was not set.
pub enum Absent {
    Nothing,
    /// A list, a map or bytes that are nil, a time that is zero, a pointer.
    Null,
    /// The text of a scalar's zero.
    Zero(&'static str),
    /// A struct, with its own implied fields.
    Object(Message),
}

impl Field {
    /// Returns the JSON for the field if it was not set: structs, which `omitempty` does not leave out, and fields
    /// without `omitempty` are always there. Clients with types of their own refuse an object without them.
    pub fn absent(&self) -> Absent {
        let always = |absent| if self.always { absent } else { Absent::Nothing };
        match (self.shape, self.kind) {
            _ if self.pointer => always(Absent::Null),
            (Shape::List | Shape::Map, _) => always(Absent::Null),
            (Shape::One, Kind::Message(inner)) => Absent::Object(at(inner)),
            (Shape::One, Kind::Quantity) => Absent::Zero("\"0\""),
            (Shape::One, Kind::IntOrString) => Absent::Zero("0"),
            // The one struct with `omitzero`.
            (Shape::One, Kind::Time) if self.name() == "creationTimestamp" => Absent::Nothing,
            (Shape::One, Kind::Time | Kind::MicroTime | Kind::Raw) => Absent::Null,
            (Shape::One, Kind::Bytes | Kind::Texts) => always(Absent::Null),
            (Shape::One, Kind::Text) => always(Absent::Zero("\"\"")),
            (Shape::One, Kind::Flag) => always(Absent::Zero("false")),
            (Shape::One, Kind::Int32 | Kind::Int64 | Kind::Double) => always(Absent::Zero("0")),
            (Shape::One, Kind::SchemaOrList(_) | Kind::SchemaOrFlag(_) | Kind::SchemaOrTexts(_)) => {
                Absent::Nothing
            }
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

/// A message of the table.
#[derive(Clone, Copy)]
pub struct Message(&'static RawMessage);

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Message {
    /// `core/v1.Pod`
    pub fn name(self) -> &'static str {
        self.0.name.text()
    }

    /// Its fields by number.
    pub fn fields(self) -> &'static [Field] {
        let start = usize::from(self.0.start);
        &FIELDS[start..start + usize::from(self.0.count)]
    }

    /// Returns the place of its first field among all fields.
    pub(crate) fn start(self) -> u16 {
        self.0.start
    }

    /// `true` if JSON has the fields in another order than that of their numbers.
    pub fn is_reordered(self) -> bool {
        self.0.reordered
    }

    /// Returns a bit for each of [`Message::fields`] that JSON has with its zero if it was not set.
    pub(crate) fn implied(self) -> u64 {
        self.0.implied
    }

    /// Returns `true` if its objects have `kind` and `apiVersion`, which are not fields of the message.
    pub fn is_typed(self) -> bool {
        self.0.typed
    }

    /// Returns the field of that name in JSON and its place there, also if it belongs to an inlined message.
    pub fn member(self, name: &str) -> Option<(u8, &'static Field)> {
        let members = self.members();
        let found = members.binary_search_by(|member| member.name.text().cmp(name)).ok()?;
        Some((members[found].place, &FIELDS[usize::from(members[found].field)]))
    }

    /// The fields in JSON, in their order there.
    pub fn in_order(self) -> Vec<&'static Field> {
        let mut members: Vec<&Member> = self.members().iter().collect();
        members.sort_by_key(|member| member.place);
        members.into_iter().map(|member| &FIELDS[usize::from(member.field)]).collect()
    }

    fn members(self) -> &'static [Member] {
        let start = usize::from(self.0.members);
        &MEMBERS[start..start + usize::from(self.0.member_count)]
    }
}

/// The message of an index in [`Kind`].
pub fn at(index: u16) -> Message {
    Message(&MESSAGES[usize::from(index)])
}

/// All messages, by name.
pub fn messages() -> impl Iterator<Item = Message> {
    MESSAGES.iter().map(Message)
}

/// The message of this name: `core/v1.PodSpec`.
pub fn message(name: &str) -> Option<Message> {
    let found = MESSAGES.binary_search_by(|raw| raw.name.text().cmp(name)).ok()?;
    Some(Message(&MESSAGES[found]))
}

/// All kinds that have a message of their own: apiVersion, kind, message.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str, Message)> {
    KINDS.iter().map(|(version, kind, index)| (version.text(), kind.text(), at(*index)))
}

/// The message of a kind, by `apiVersion` and `kind`.
pub fn of_kind(api_version: &str, kind: &str) -> Option<Message> {
    let find = |version: &str| {
        let found = KINDS.binary_search_by(|row| (row.0.text(), row.1.text()).cmp(&(version, kind))).ok()?;
        Some(at(KINDS[found].2))
    };
    if let Some(message) = find(api_version) {
        return Some(message);
    }
    match kind {
        // Clients send them with the group and version of their target.
        "DeleteOptions" | "CreateOptions" | "UpdateOptions" | "PatchOptions" | "ListOptions"
        | "GetOptions" => find("meta.k8s.io/v1"),
        // Types without a group are sent with the legacy version `v1`.
        "Status" | "APIVersions" | "APIGroup" | "APIGroupList" | "APIResourceList" if api_version == "v1" => {
            find("meta.k8s.io/v1")
        }
        // Nothing else of that version is left.
        "Eviction" if api_version == "policy/v1beta1" => find("policy/v1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implied_fields_are_those_whose_absence_is_a_zero_or_a_struct() {
        for message in messages() {
            let fields = message.fields();
            let found = fields.iter().enumerate().map(|(place, field)| {
                u64::from(matches!(field.absent(), Absent::Zero(_) | Absent::Object(_))) << place
            });
            assert_eq!(message.implied(), found.sum::<u64>(), "{}", message.name());
        }
    }
}
