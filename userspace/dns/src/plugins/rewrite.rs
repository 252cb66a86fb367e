//! The plugin `rewrite`: questions that are asked in another's place, and what of their answers is turned back.

use hickory_proto::rr::{Name as RecordName, RData, Record};

use super::pattern::{Matcher, Pattern, dotted, text};
use super::{Asked, Response, kind};
use crate::name::Name;
use crate::syntax::{Directive, Line, LineError, wrong};
use crate::wire;

/// A line `rewrite`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Further rules are applied.
    goes_on: bool,
    field: Field,
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Name {
        from: Matcher,
        to: String,
        /// The name that was asked for comes back where the other one stands in the answer.
        auto: bool,
        answers: Vec<Answer>,
    },
    Type(u16, u16),
    /// Least and greatest lifetime.
    Ttl(Matcher, u32, u32),
    Code(Matcher, u8, u8),
}

/// A part `answer name FROM TO` or `answer value FROM TO`.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    is_value: bool,
    from: Pattern,
    to: String,
}

impl Rule {
    pub fn parse(plugin: &Directive, patterns: &mut usize) -> Result<Self, LineError> {
        let line = plugin.line;
        let block = plugin.block.iter().flat_map(|option| &option.words);
        let words: Vec<&str> = plugin.words.iter().skip(1).chain(block).map(String::as_str).collect();
        let (goes_on, words) = match words.split_first() {
            Some((&"continue", rest)) => (true, rest),
            Some((&"stop", rest)) => (false, rest),
            _ => (false, &*words),
        };
        let Some((field, arguments)) = words.split_first() else {
            return wrong(line, "rewrite: write [continue|stop] name|type|ttl|rcode ...");
        };
        let field = match (*field, arguments) {
            ("name", arguments) => parse_name(arguments, line, patterns)?,
            ("type", [from, to]) => Field::Type(kind(from, plugin)?, kind(to, plugin)?),
            ("ttl", [name, seconds]) => parse_ttl("exact", name, seconds, line, patterns)?,
            ("ttl", [sort, name, seconds]) => parse_ttl(sort, name, seconds, line, patterns)?,
            ("rcode", [name, from, to]) => parse_code("exact", name, (from, to), line, patterns)?,
            ("rcode", [sort, name, from, to]) => parse_code(sort, name, (from, to), line, patterns)?,
            (other, _) => {
                return wrong(
                    line,
                    format!(
                        "rewrite: {other:?} with these arguments is not supported: there are name [exact|prefix|suffix|substring|regex] FROM TO [answer auto|name FROM TO|value FROM TO], type FROM TO, ttl [SORT] NAME SECONDS|MIN-MAX, rcode [SORT] NAME FROM TO"
                    ),
                );
            }
        };
        Ok(Self { goes_on, field })
    }

    /// Returns `true` if the rule applies to a question for a type, with the text of its name.
    fn concerns(&self, kind: u16, name: Option<&str>) -> bool {
        match &self.field {
            Field::Type(from, _) => kind == *from,
            Field::Name { from, .. } | Field::Ttl(from, ..) | Field::Code(from, ..) => {
                name.is_some_and(|name| from.matches(name))
            }
        }
    }
}

/// Returns `true` if one of the rules applies to a question.
pub fn concern(rules: &[Rule], asked: &Asked) -> bool {
    if rules.is_empty() {
        return false;
    }
    let name = text(&asked.name);
    rules.iter().any(|rule| rule.concerns(asked.kind, name.as_deref()))
}

fn matcher(sort: &str, text: &str, line: Line, patterns: &mut usize) -> Result<Matcher, LineError> {
    match Matcher::parse(sort, text, line, patterns)? {
        Some(matcher) => Ok(matcher),
        None => wrong(line, format!("rewrite: {sort:?} is not exact, prefix, suffix, substring or regex")),
    }
}

fn parse_name(arguments: &[&str], line: Line, patterns: &mut usize) -> Result<Field, LineError> {
    let (sort, from, to, rest) = match arguments {
        [from, to] => ("exact", from, to, &[][..]),
        [sort, from, to, rest @ ..] => (*sort, from, to, rest),
        _ => return wrong(line, "rewrite: write name [exact|prefix|suffix|substring|regex] FROM TO"),
    };
    let from = matcher(sort, from, line, patterns)?;
    let (mut auto, mut answers, mut rest) = (sort == "exact", Vec::new(), rest);
    let mut has_auto = false;
    if rest.first().is_some_and(|word| *word != "answer") {
        return wrong(line, format!("rewrite: {:?} is not `answer`", rest[0]));
    }
    while !rest.is_empty() {
        if rest[0] == "answer" {
            rest = &rest[1..];
        }
        match rest {
            ["auto", behind @ ..] => {
                (auto, has_auto) = (true, true);
                rest = behind;
            }
            [what @ ("name" | "value"), from, to, behind @ ..] => {
                let from = Pattern::new(from, line, patterns)?;
                answers.push(Answer { is_value: *what == "value", from, to: dotted(to) });
                rest = behind;
            }
            _ => return wrong(line, "rewrite: behind `answer` stands auto, name FROM TO or value FROM TO"),
        }
    }
    if has_auto && answers.iter().any(|answer| !answer.is_value) {
        return wrong(line, "rewrite: `answer auto` and `answer name` exclude each other");
    }
    Ok(Field::Name { from, to: dotted(to), auto, answers })
}

fn parse_ttl(
    sort: &str,
    name: &str,
    seconds: &str,
    line: Line,
    patterns: &mut usize,
) -> Result<Field, LineError> {
    let (low, high) = match seconds.split_once('-') {
        None => (seconds, seconds),
        Some(("", "")) => ("-", "-"),
        Some((low, high)) => (if low.is_empty() { "0" } else { low }, high),
    };
    let number = |text: &str| text.parse::<u32>().ok().filter(|seconds| *seconds <= i32::MAX as u32);
    let high = if high.is_empty() { Some(i32::MAX as u32) } else { number(high) };
    match (number(low), high) {
        (Some(low), Some(high)) if low <= high => {
            Ok(Field::Ttl(matcher(sort, name, line, patterns)?, low, high))
        }
        _ => wrong(line, format!("rewrite: {seconds:?} is neither SECONDS nor MIN-MAX")),
    }
}

fn parse_code(
    sort: &str,
    name: &str,
    (from, to): (&str, &str),
    line: Line,
    patterns: &mut usize,
) -> Result<Field, LineError> {
    let code = |text: &str| match wire::code(text) {
        Some(code) => Ok(code),
        None => wrong(line, format!("{text:?} is not the code of an answer, such as NXDOMAIN")),
    };
    Ok(Field::Code(matcher(sort, name, line, patterns)?, code(from)?, code(to)?))
}

/// A question after the rules.
#[derive(Debug)]
pub struct Rewritten<'a> {
    /// The question that is asked; `None` if its name would be none.
    pub asked: Option<Asked>,
    undo: Vec<Undo<'a>>,
}

/// A change of the answer.
#[derive(Debug)]
enum Undo<'a> {
    /// A name, or the end of one, becomes another, with whole labels before it.
    Back {
        from: String,
        to: String,
    },
    /// The end of a name becomes another.
    Suffix {
        from: &'a str,
        to: &'a str,
    },
    Answer(&'a Answer),
    Ttl(u32, u32),
    Code(u8, u8),
}

impl<'a> Rewritten<'a> {
    pub fn of(rules: &'a [Rule], asked: &Asked) -> Self {
        let (mut asked, mut undo) = (*asked, Vec::new());
        // Written anew only where a rule changes it.
        let mut name = text(&asked.name);
        for rule in rules {
            if !rule.concerns(asked.kind, name.as_deref()) {
                continue;
            }
            match &rule.field {
                Field::Type(_, to) => asked.kind = *to,
                Field::Ttl(_, low, high) => undo.push(Undo::Ttl(*low, *high)),
                Field::Code(_, from, to) => undo.push(Undo::Code(*from, *to)),
                Field::Name { from, to, auto, answers } => {
                    let before = name.take().unwrap_or_default();
                    let after = from.replaced(&before, to).and_then(|name| Name::parse(&name).ok());
                    let Some(after) = after else { return Self { asked: None, undo: Vec::new() } };
                    (asked.name, name) = (after, text(&after));
                    if *auto {
                        undo.push(match from {
                            Matcher::Suffix(from) => Undo::Suffix { from: to, to: from },
                            _ => Undo::Back { from: after.to_string(), to: before },
                        });
                    }
                    undo.extend(answers.iter().map(Undo::Answer));
                }
            }
            if !rule.goes_on {
                break;
            }
        }
        Self { asked: Some(asked), undo }
    }

    /// Changes the response to the question that was asked into one to the original question.
    pub fn undone(&self, mut response: Response) -> Response {
        // The last rule's changes come first.
        for undo in self.undo.iter().rev() {
            if let Undo::Code(from, to) = undo
                && response.code == *from
            {
                response.code = *to;
            }
            response.records_mut().for_each(|record| undo.apply(record));
        }
        response
    }
}

impl Undo<'_> {
    fn apply(&self, record: &mut Record) {
        match self {
            Undo::Ttl(low, high) => record.ttl = record.ttl.clamp(*low, *high),
            Undo::Code(..) => {}
            Undo::Answer(answer) if answer.is_value => self.rename(value(&mut record.data)),
            Undo::Answer(_) => self.rename(Some(&mut record.name)),
            Undo::Back { .. } | Undo::Suffix { .. } => {
                self.rename(Some(&mut record.name));
                self.rename(value(&mut record.data));
            }
        }
    }

    /// Changes a name. One that would be no name stays as it was.
    fn rename(&self, name: Option<&mut RecordName>) {
        let Some(name) = name else { return };
        let before = name.to_ascii().to_ascii_lowercase();
        let after = match self {
            Undo::Back { from, to } => {
                let labels = before.strip_suffix(&**from);
                labels
                    .filter(|labels| labels.is_empty() || labels.ends_with('.'))
                    .map(|labels| format!("{labels}{to}"))
            }
            Undo::Suffix { from, to } => before.strip_suffix(from).map(|labels| format!("{labels}{to}")),
            Undo::Answer(answer) => answer.from.captures(&before).map(|groups| groups.replaced(&answer.to)),
            Undo::Ttl(..) | Undo::Code(..) => None,
        };
        if let Some(mut after) = after.and_then(|after| RecordName::from_ascii(after).ok()) {
            after.set_fqdn(true);
            *name = after;
        }
    }
}

/// Returns the name in the data of a record.
fn value(data: &mut RData) -> Option<&mut RecordName> {
    match data {
        RData::CNAME(target) => Some(&mut target.0),
        RData::NS(target) => Some(&mut target.0),
        RData::PTR(target) => Some(&mut target.0),
        RData::MX(mx) => Some(&mut mx.exchange),
        RData::SRV(srv) => Some(&mut srv.target),
        RData::NAPTR(naptr) => Some(&mut naptr.replacement),
        RData::SOA(soa) => Some(&mut soa.mname),
        _ => None,
    }
}
