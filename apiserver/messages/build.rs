//! Writes the messages of the protobuf encoding as static arrays of integers. The source is `data/protobuf.txt`; a line
//! that is not understood stops the build.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=data/protobuf.txt");
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let table = root.join("data/protobuf.txt");
    let table = std::fs::read_to_string(&table).unwrap_or_else(|e| panic!("{}: {e}", table.display()));
    std::fs::write(out.join("messages.rs"), source(&table)).expect("OUT_DIR is writable");
}

struct Message<'a> {
    /// `core/v1.Pod`
    name: String,
    /// The apiVersion and name, if the message is a kind.
    kind: Option<(&'a str, &'a str)>,
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    number: u16,
    /// Place among the fields of the message in JSON.
    place: usize,
    /// Empty if the fields of the message are inlined in its parent.
    name: &'a str,
    pointer: bool,
    always: bool,
    shape: &'static str,
    /// Letter of the type.
    letter: char,
    /// Name of the message.
    target: String,
    /// Name of the Go type of a scalar, empty where it is one of the language.
    go_type: &'a str,
}

/// A field as in JSON: fields of inlined messages are the parent's.
struct Member<'a> {
    name: &'a str,
    /// Index among all fields.
    field: usize,
}

#[derive(Default)]
struct Names {
    text: String,
    known: HashMap<String, usize>,
}

impl Names {
    fn intern(&mut self, name: &str) -> String {
        let at = *self.known.entry(name.to_owned()).or_insert_with(|| {
            self.text.push_str(name);
            self.text.len() - name.len()
        });
        format!("Name({at},{})", u8::try_from(name.len()).expect("a name fits"))
    }
}

/// Returns the source of the statics that `src/table.rs` includes.
fn source(table: &str) -> String {
    let messages = parse(table);
    let index: BTreeMap<&str, usize> =
        messages.iter().enumerate().map(|(i, m)| (m.name.as_str(), i)).collect();
    let mut names = Names::default();
    let (mut rows, mut fields, mut members, mut kinds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let starts: Vec<usize> = messages
        .iter()
        .scan(0, |next, message| Some(std::mem::replace(next, *next + message.fields.len())))
        .collect();
    for (i, message) in messages.iter().enumerate() {
        let (start, count, of) = (starts[i], message.fields.len(), members.len());
        let name = names.intern(&message.name);
        for (place, member) in sorted(members_of(i, &messages, &starts, &index)) {
            let name = names.intern(member.name);
            members.push(format!("Member{{name:{name},place:{place},field:{}}}", member.field));
        }
        rows.push(format!(
            "RawMessage{{name:{name},start:{start},count:{count},members:{of},member_count:{},reordered:{},\
             typed:{},implied:{}}}",
            members.len() - of,
            !message.fields.is_sorted_by_key(|field| field.place),
            message.kind.is_some(),
            implied(message),
        ));
        for field in &message.fields {
            let (name, go_type) = (names.intern(field.name), names.intern(field.go_type));
            let kind = kind(field, &index);
            fields.push(format!(
                "Field{{name:{name},go_type:{go_type},number:{},place:{},pointer:{},always:{},\
                 shape:Shape::{},kind:{kind}}}",
                field.number, field.place, field.pointer, field.always, field.shape
            ));
        }
        if let Some((version, kind)) = message.kind {
            kinds.push((version, kind, i));
        }
    }
    kinds.sort_unstable();
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|(version, kind, i)| format!("({},{},{i})", names.intern(version), names.intern(kind)))
        .collect();
    let mut out = String::new();
    for (name, ty, rows) in [
        ("MESSAGES", "RawMessage", &rows),
        ("FIELDS", "Field", &fields),
        ("MEMBERS", "Member", &members),
        ("KINDS", "(Name, Name, u16)", &kinds),
    ] {
        writeln!(out, "static {name}: [{ty}; {}] = [\n{}\n];", rows.len(), rows.join(",\n"))
            .expect("writing to a string");
    }
    let managed = index["meta/v1.ManagedFieldsEntry"];
    writeln!(out, "pub(crate) const MANAGED_FIELDS: Kind = Kind::Message({managed});")
        .expect("writing to a string");
    writeln!(out, "static NAMES: &str = {:?};", names.text).expect("writing to a string");
    out
}

/// A bit for each field that JSON has with its zero if it was not set; `Field::absent` says why.
fn implied(message: &Message<'_>) -> u64 {
    assert!(message.fields.len() <= 64, "{} has more fields than there are bits", message.name);
    let is_implied = |field: &Field<'_>| match field.letter {
        _ if field.pointer || field.shape != "One" => false,
        'm' | 'q' | 'o' => true,
        letter => field.always && matches!(letter, 's' | 'b' | 'i' | 'l' | 'f'),
    };
    message.fields.iter().enumerate().map(|(place, field)| u64::from(is_implied(field)) << place).sum()
}

/// The fields of a message in JSON, in their order there.
fn members_of<'a>(
    message: usize,
    messages: &[Message<'a>],
    starts: &[usize],
    index: &BTreeMap<&str, usize>,
) -> Vec<Member<'a>> {
    let mut fields: Vec<(usize, &Field<'a>)> = messages[message].fields.iter().enumerate().collect();
    fields.sort_by_key(|(_, field)| field.place);
    let mut members = Vec::new();
    for (i, field) in fields {
        if field.name.is_empty() {
            members.extend(members_of(index[field.target.as_str()], messages, starts, index));
        } else {
            members.push(Member { name: field.name, field: starts[message] + i });
        }
    }
    members
}

/// Members by name, for the search, each with its place.
fn sorted(members: Vec<Member<'_>>) -> Vec<(usize, Member<'_>)> {
    let mut sorted: Vec<_> = members.into_iter().enumerate().collect();
    sorted.sort_by_key(|(_, member)| member.name);
    sorted
}

fn parse(table: &str) -> Vec<Message<'_>> {
    let (mut package, mut version) = ("", "");
    let mut messages: Vec<Message<'_>> = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix('@') {
            (package, version) = rest.split_once(' ').expect("a package has an apiVersion");
        } else if let Some(rest) = line.strip_prefix(' ') {
            let message = messages.last_mut().expect("a message comes before its fields");
            let place = message.fields.len();
            let field = field(rest, package, place).unwrap_or_else(|| panic!("not a field: {line:?}"));
            assert!(
                message.fields.iter().all(|other| other.number != field.number),
                "{line:?} is there twice"
            );
            message.fields.push(field);
        } else {
            let (name, kind) = match line.strip_suffix('+') {
                Some(kind) => (kind, Some((version, kind))),
                None => (line, None),
            };
            messages.push(Message { name: format!("{package}.{name}"), kind, fields: Vec::new() });
        }
    }
    // By name, for the search.
    messages.sort_by(|a, b| a.name.cmp(&b.name));
    // In the order on the wire.
    messages.iter_mut().for_each(|message| message.fields.sort_by_key(|field| field.number));
    messages
}

/// `2 selector *!mmeta/v1.LabelSelector`, `4 protocol s v1.Protocol`
fn field<'a>(line: &'a str, package: &str, place: usize) -> Option<Field<'a>> {
    let mut parts = line.split(' ');
    let (number, name, code) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let (code, pointer) = code.strip_prefix('*').map_or((code, false), |rest| (rest, true));
    let (code, always) = code.strip_prefix('!').map_or((code, false), |rest| (rest, true));
    let (code, shape) = match code.as_bytes().first()? {
        b'[' => (&code[1..], "List"),
        b'{' => (&code[1..], "Map"),
        _ => (code, "One"),
    };
    let (letter, rest) = (code.chars().next()?, &code[1..]);
    let target =
        if rest.is_empty() || rest.contains('/') { rest.to_owned() } else { format!("{package}.{rest}") };
    let name = if name == "-" { "" } else { name };
    let go_type = parts.next().unwrap_or_default();
    (parts.next().is_none()).then_some(Field {
        number,
        place,
        name,
        pointer,
        always,
        shape,
        letter,
        target,
        go_type,
    })
}

fn kind(field: &Field<'_>, index: &BTreeMap<&str, usize>) -> String {
    let of = |name: &str| *index.get(name).unwrap_or_else(|| panic!("no message {name}"));
    let schema = |name: &str| format!("Kind::{name}({})", of("apiextensions/v1.JSONSchemaProps"));
    match field.letter {
        's' => "Kind::Text".to_owned(),
        'b' => "Kind::Flag".to_owned(),
        'i' => "Kind::Int32".to_owned(),
        'l' => "Kind::Int64".to_owned(),
        'f' => "Kind::Double".to_owned(),
        'y' => "Kind::Bytes".to_owned(),
        'L' => "Kind::Texts".to_owned(),
        't' => "Kind::Time".to_owned(),
        'u' => "Kind::MicroTime".to_owned(),
        'q' => "Kind::Quantity".to_owned(),
        'o' => "Kind::IntOrString".to_owned(),
        'r' => "Kind::Raw".to_owned(),
        'm' => format!("Kind::Message({})", of(&field.target)),
        'A' => schema("SchemaOrList"),
        'B' => schema("SchemaOrFlag"),
        'C' => schema("SchemaOrTexts"),
        other => panic!("no type {other:?}"),
    }
}
