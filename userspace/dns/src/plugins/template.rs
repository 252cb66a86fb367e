//! The plugin `template`: answers that are put together from the question.

use hickory_proto::rr::{Record, RecordType};

use super::pattern::{Groups, Pattern, text};
use super::{Asked, Response, kind, records, zone_of};
use crate::limits;
use crate::name::Name;
use crate::syntax::{Directive, LineError, fallthrough, wrong, zones};
use crate::wire::{self, Flags};

/// A line `template` with its block.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The type of questions; [`wire::ANY`] for all.
    kind: u16,
    zones: Vec<Name>,
    patterns: Vec<Pattern>,
    answers: Vec<Text>,
    authorities: Vec<Text>,
    additionals: Vec<Text>,
    code: u8,
    fallthrough: Vec<Name>,
}

/// The text of a record, with what stands for parts of the question.
type Text = Vec<Part>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Plain(String),
    Name,
    Zone,
    Class,
    Type,
    Client,
    Match(usize),
    Group(String),
}

impl Template {
    pub fn parse(plugin: &Directive, block: &[Name], patterns: &mut usize) -> Result<Self, LineError> {
        let words: Vec<&str> = plugin.arguments().collect();
        let [class, asked, names @ ..] = &*words else {
            return wrong(plugin.line, "template: write CLASS TYPE [ZONES...]");
        };
        if !["IN", "ANY"].iter().any(|known| known.eq_ignore_ascii_case(class)) {
            return wrong(
                plugin.line,
                format!("template: class {class:?} is not supported: only IN and ANY"),
            );
        }
        let mut template = Self {
            kind: kind(asked, plugin)?,
            zones: zones(names.iter().copied(), plugin.line, block)?,
            patterns: Vec::new(),
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            code: wire::NO_ERROR,
            fallthrough: Vec::new(),
        };
        // Texts are checked against the groups of all expressions, wherever those stand.
        for option in plugin.block.iter().filter(|option| option.name() == "match") {
            for expression in option.arguments() {
                template.patterns.push(Pattern::new(expression, option.line, patterns)?);
            }
        }
        for option in &plugin.block {
            template.add(option)?;
        }
        Ok(template)
    }

    fn add(&mut self, option: &Directive) -> Result<(), LineError> {
        let arguments: Vec<&str> = option.arguments().collect();
        match (option.name(), &*arguments) {
            ("match", [_, ..]) => {}
            (section @ ("answer" | "authority" | "additional"), [_, ..]) => {
                for argument in arguments {
                    let text = self.text(argument, option)?;
                    let all = match section {
                        "answer" => &mut self.answers,
                        "authority" => &mut self.authorities,
                        _ => &mut self.additionals,
                    };
                    all.push(text);
                }
                if self.answers.len() + self.authorities.len() + self.additionals.len()
                    > limits::TEMPLATE_RECORDS
                {
                    return wrong(
                        option.line,
                        format!("template: there are more than {} records", limits::TEMPLATE_RECORDS),
                    );
                }
            }
            ("rcode", [text]) => match wire::code(text) {
                Some(code) => self.code = code,
                None => {
                    return wrong(
                        option.line,
                        format!("{text:?} is not the code of an answer, such as NXDOMAIN"),
                    );
                }
            },
            ("fallthrough", zones) => self.fallthrough.extend(fallthrough(zones, option.line)?),
            (other, _) => {
                return wrong(
                    option.line,
                    format!(
                        "template: {other:?} with these arguments is not supported: there are match REGEX, answer|authority|additional RECORD, rcode CODE, fallthrough [ZONES]"
                    ),
                );
            }
        }
        Ok(())
    }

    /// Parses the text of a record.
    fn text(&self, text: &str, option: &Directive) -> Result<Text, LineError> {
        if text.len() > limits::TEMPLATE_RECORD {
            return wrong(
                option.line,
                format!("template: a record is longer than {} bytes", limits::TEMPLATE_RECORD),
            );
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((plain, behind)) = rest.split_once("{{") {
            let Some((expression, behind)) = behind.split_once("}}") else {
                return wrong(option.line, "template: {{ is not closed");
            };
            parts.push(Part::Plain(plain.to_owned()));
            parts.push(self.part(expression, option)?);
            rest = behind;
        }
        parts.push(Part::Plain(rest.to_owned()));
        parts.retain(|part| *part != Part::Plain(String::new()));
        check_kind(&parts, option)?;
        Ok(parts)
    }

    fn part(&self, expression: &str, option: &Directive) -> Result<Part, LineError> {
        let words: Vec<&str> = expression.split_whitespace().collect();
        let part = match &*words {
            [".Name" | ".Question.Name"] => Part::Name,
            [".Zone"] => Part::Zone,
            [".Class"] => Part::Class,
            [".Type"] => Part::Type,
            [".Remote"] => Part::Client,
            ["index", ".Match", number] => match number.parse() {
                Ok(number) => Part::Match(number),
                Err(_) => {
                    return wrong(option.line, format!("template: {number:?} is not a number of a match"));
                }
            },
            ["index", ".Group", group] => Part::Group(group.trim_matches('"').to_owned()),
            [word] if word.starts_with(".Group.") => Part::Group(word[".Group.".len()..].to_owned()),
            _ => {
                return wrong(
                    option.line,
                    format!(
                        "template: {{{{{expression}}}}} is not supported: there are .Name, .Zone, .Class, .Type, .Remote, .Question.Name, index .Match N and .Group.NAME"
                    ),
                );
            }
        };
        let exists = match &part {
            // Without an expression, the whole name matches.
            Part::Match(number) => *number < self.patterns.iter().map(Pattern::groups).max().unwrap_or(1),
            Part::Group(group) => self.patterns.iter().any(|pattern| pattern.has_group(group)),
            _ => true,
        };
        if !exists {
            return wrong(
                option.line,
                format!("template: no expression has the group of {{{{{expression}}}}}"),
            );
        }
        Ok(part)
    }

    /// Answers a question; `None` if it is for others.
    pub fn answer(&self, asked: &Asked) -> Option<Response> {
        let zone = zone_of(&self.zones, &asked.name)?;
        if ![asked.kind, wire::ANY].contains(&self.kind) && asked.kind != wire::ANY {
            return None;
        }
        let question = Question { asked, zone, name: text(&asked.name) };
        let groups = match &*self.patterns {
            [] => Some(None),
            patterns => {
                let name = question.name.as_deref();
                name.and_then(|name| patterns.iter().find_map(|pattern| pattern.captures(name))).map(Some)
            }
        };
        let failure = || Response::failure(wire::SERVER_FAILURE);
        match groups {
            Some(groups) => Some(self.response(&question, groups.as_ref()).unwrap_or_else(failure)),
            None => zone_of(&self.fallthrough, &asked.name).is_none().then(failure),
        }
    }

    /// Returns the records; `None` if one is none.
    fn response(&self, question: &Question<'_>, groups: Option<&Groups<'_>>) -> Option<Response> {
        if self.code == wire::SERVER_FAILURE {
            return None;
        }
        let write = |texts: &[Text]| -> Option<Vec<Record>> {
            texts.iter().map(|text| records::parse(&self.written(text, question, groups)?)).collect()
        };
        Some(Response {
            code: self.code,
            flags: Flags::AUTHORITATIVE,
            answers: write(&self.answers)?,
            authorities: write(&self.authorities)?,
            additionals: write(&self.additionals)?,
        })
    }

    fn written(&self, text: &Text, question: &Question<'_>, groups: Option<&Groups<'_>>) -> Option<String> {
        let mut out = String::new();
        for part in text {
            match (part, groups) {
                (Part::Plain(text), _) => out.push_str(text),
                (Part::Name, _) | (Part::Match(0), None) => out.push_str(question.name.as_deref()?),
                (Part::Zone, _) => out.push_str(&question.zone.to_string()),
                (Part::Class, _) => out.push_str("IN"),
                (Part::Type, _) => {
                    let kind = if question.asked.kind == wire::ANY { self.kind } else { question.asked.kind };
                    out.push_str(&RecordType::from(kind).to_string());
                }
                (Part::Client, _) => out.push_str(&question.asked.client.to_string()),
                (Part::Match(number), Some(groups)) => out.push_str(groups.number(*number)?),
                (Part::Group(group), Some(groups)) => out.push_str(groups.named(group)?),
                (Part::Match(_) | Part::Group(_), None) => return None,
            }
            if out.len() > limits::TEMPLATE_RECORD {
                return None;
            }
        }
        Some(out)
    }
}

/// The question that a template is filled with.
struct Question<'a> {
    asked: &'a Asked,
    zone: &'a Name,
    /// `None` if the name cannot be written without escapes.
    name: Option<String>,
}

/// Refuses a record whose type is written out and is none of those that can be written.
fn check_kind(parts: &[Part], option: &Directive) -> Result<(), LineError> {
    let plain: String =
        parts.iter().map(|part| if let Part::Plain(text) = part { text.as_str() } else { "{}" }).collect();
    let mut words = plain
        .split_whitespace()
        .skip(1)
        .filter(|word| !word.eq_ignore_ascii_case("IN") && *word != "{}" && word.parse::<u32>().is_err());
    let has_variable = plain.split_whitespace().skip(1).any(|word| word == "{}");
    match words.next() {
        Some(word) if records::KINDS.iter().any(|known| known.eq_ignore_ascii_case(word)) => Ok(()),
        // The type may come from the question.
        _ if has_variable => Ok(()),
        _ => wrong(
            option.line,
            format!(
                "template: a record is NAME [TTL] [IN] TYPE DATA, with one of the types {}",
                records::KINDS.join(", ")
            ),
        ),
    }
}
