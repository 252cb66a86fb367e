//! Writes the messages of the protobuf encoding as static arrays of integers, as `graph` does it for
//! types. The source is `data/protobuf.txt`; a line that is not understood stops the build.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

struct Message<'a> {
    /// `core/v1.Pod`
    name: String,
    /// Where it is a kind: its apiVersion and name.
    kind: Option<(&'a str, &'a str)>,
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    number: u16,
    /// Empty: the fields of the message stand in its parent.
    name: &'a str,
    pointer: bool,
    always: bool,
    shape: &'static str,
    /// Letter of the type.
    letter: char,
    /// Name of the message.
    target: String,
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

/// The source of the statics that `src/protobuf/table.rs` includes.
pub fn source(table: &str) -> String {
    let messages = parse(table);
    let index: BTreeMap<&str, usize> =
        messages.iter().enumerate().map(|(i, m)| (m.name.as_str(), i)).collect();
    let mut names = Names::default();
    let (mut rows, mut fields, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for (i, message) in messages.iter().enumerate() {
        let (start, count) = (fields.len(), message.fields.len());
        let name = names.intern(&message.name);
        rows.push(format!("RawMessage{{name:{name},start:{start},count:{count}}}"));
        for field in &message.fields {
            let name = names.intern(field.name);
            let kind = kind(field, &index);
            fields.push(format!(
                "Field{{name:{name},number:{},pointer:{},always:{},shape:Shape::{},kind:{kind}}}",
                field.number, field.pointer, field.always, field.shape
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
        ("KINDS", "(Name, Name, u16)", &kinds),
    ] {
        writeln!(out, "static {name}: [{ty}; {}] = [\n{}\n];", rows.len(), rows.join(",\n"))
            .expect("writing to a string");
    }
    writeln!(out, "static NAMES: &str = {:?};", names.text).expect("writing to a string");
    out
}

fn parse(table: &str) -> Vec<Message<'_>> {
    let (mut package, mut version) = ("", "");
    let mut messages: Vec<Message<'_>> = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix('@') {
            (package, version) = rest.split_once(' ').expect("a package has an apiVersion");
        } else if let Some(rest) = line.strip_prefix(' ') {
            let field = field(rest, package).unwrap_or_else(|| panic!("not a field: {line:?}"));
            let message = messages.last_mut().expect("a message comes before its fields");
            assert!(message.fields.last().is_none_or(|last| last.number < field.number), "{line:?} is late");
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
    messages
}

/// `2 selector *!mmeta/v1.LabelSelector`
fn field<'a>(line: &'a str, package: &str) -> Option<Field<'a>> {
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
    (parts.next().is_none()).then_some(Field { number, name, pointer, always, shape, letter, target })
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
