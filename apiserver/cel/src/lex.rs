//! Characters to tokens.

use std::sync::Arc;

use super::ast::Literal;
use crate::limits::FAULTS;

/// Words that CEL reserves for later versions, which cannot be names.
pub const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Literals and operators of the language, which cannot be names either.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Returns `true` if CEL reserves the word, so that nothing can have it as its name.
pub fn is_reserved(word: &str) -> bool {
    KEYWORDS.contains(&word) || RESERVED.contains(&word)
}

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Name(String),
    /// The name of a field between backticks, which need not be one otherwise.
    Quoted(String),
    Literal(Literal),
    /// An operator or bracket, or one of `in`, `true`, `false`, `null`.
    Sign(&'static str),
    End,
}

/// A token, and the bytes that it was read from.
#[derive(Clone, Debug)]
pub struct Lexed {
    pub token: Token,
    pub at: usize,
    pub end: usize,
}

/// A syntax error and its place (byte offset).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at: usize,
    pub message: String,
}

const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// Splits a text into tokens; the last is [`Token::End`]. Unrecognized characters are skipped, and invalid
/// literals are replaced by valid ones; the second list reports both.
pub fn tokens(source: &str) -> (Vec<Lexed>, Vec<Fault>) {
    let mut lexer = Lexer { source, at: 0, faults: Vec::new() };
    let mut found = Vec::new();
    loop {
        let Some(next) = lexer.next() else { continue };
        let end = next.token == Token::End;
        found.push(next);
        if end {
            return (found, lexer.faults);
        }
    }
}

struct Lexer<'t> {
    source: &'t str,
    at: usize,
    faults: Vec<Fault>,
}

impl<'t> Lexer<'t> {
    fn rest(&self) -> &'t str {
        &self.source[self.at..]
    }

    fn fault(&mut self, at: usize, message: impl Into<String>) {
        // No more are shown.
        if self.faults.len() < FAULTS {
            self.faults.push(Fault { at, message: message.into() });
        }
    }

    /// Passes over `length` bytes that begin no token.
    fn unknown(&mut self, length: usize) {
        let shown = &self.rest()[..length];
        self.fault(self.at, format!("Syntax error: token recognition error at: '{shown}'"));
        self.at += length;
    }

    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']).len();
            self.at += space;
            if !self.rest().starts_with("//") {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// `None` if there was something else than a token.
    fn next(&mut self) -> Option<Lexed> {
        self.skip();
        let at = self.at;
        let token = self.token()?;
        Some(Lexed { token, at, end: self.at })
    }

    fn token(&mut self) -> Option<Token> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Some(Token::End) };
        let digit_follows = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
        if first.is_ascii_digit() || first == '.' && digit_follows {
            return Some(self.number());
        }
        if let Some(prefix) = string_prefix(rest) {
            return self.string(prefix);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let name = &rest[..length];
            let token = match WORDS.into_iter().find(|word| *word == name) {
                Some(word) => Token::Sign(word),
                None => Token::Name(name.to_owned()),
            };
            self.at += length;
            return Some(token);
        }
        if let Some(name) = quoted(rest).map(str::to_owned) {
            self.at += name.len() + 2;
            return Some(Token::Quoted(name));
        }
        match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            Some(sign) => {
                self.at += sign.len();
                Some(Token::Sign(sign))
            }
            None => {
                self.unknown(first.len_utf8());
                None
            }
        }
    }

    fn number(&mut self) -> Token {
        let at = self.at;
        let rest = self.rest().as_bytes();
        let digits = |from: usize| rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        if rest.starts_with(b"0x") {
            let length = rest[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
            let text = self.source[at + 2..at + 2 + length].to_owned();
            self.at += 2 + length;
            return self.whole(at, &text, 16);
        }
        let mut length = digits(0);
        let mut float = false;
        if rest.get(length) == Some(&b'.') && digits(length + 1) > 0 {
            float = true;
            length += 1 + digits(length + 1);
        }
        if matches!(rest.get(length), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(rest.get(length + 1), Some(b'+' | b'-')));
            if length + 1 + sign <= rest.len() && digits(length + 1 + sign) > 0 {
                float = true;
                length += 1 + sign + digits(length + 1 + sign);
            }
        }
        let text = self.source[at..at + length].to_owned();
        self.at += length;
        if float {
            let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
            if number.is_none() {
                self.fault(at, "invalid double literal");
            }
            return Token::Literal(Literal::Double(number.unwrap_or_default()));
        }
        self.whole(at, &text, 10)
    }

    /// The value of digits; an integer of more than 63 bits may be the largest negative one.
    fn whole(&mut self, at: usize, digits: &str, radix: u32) -> Token {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            let number = u64::from_str_radix(digits, radix);
            if number.is_err() {
                self.fault(at, "invalid uint literal");
            }
            return Token::Literal(Literal::Uint(number.unwrap_or_default()));
        }
        let negative = self.source[..at].ends_with('-');
        let number = match i64::from_str_radix(digits, radix) {
            Ok(number) => number,
            // Taken back by the sign in front of it, and refused without one.
            Err(_) if negative && u64::from_str_radix(digits, radix) == Ok(1 << 63) => i64::MIN,
            Err(_) => {
                self.fault(at - usize::from(negative), "invalid int literal");
                0
            }
        };
        Token::Literal(Literal::Int(number))
    }

    fn string(&mut self, (length, raw, bytes): (usize, bool, bool)) -> Option<Token> {
        let at = self.at;
        let body = &self.source[at + length..];
        let quote =
            if body.starts_with("\"\"\"") || body.starts_with("'''") { &body[..3] } else { &body[..1] };
        let text = &body[quote.len()..];
        let mut found: Vec<u8> = Vec::new();
        let mut position = 0;
        loop {
            let rest = &text[position..];
            if rest.starts_with(quote) {
                self.at = at + length + quote.len() + position + quote.len();
                break;
            }
            let Some(character) =
                rest.chars().next().filter(|c| quote.len() == 3 || !matches!(c, '\n' | '\r'))
            else {
                let line = self.rest().lines().next().unwrap_or_default().len();
                self.unknown(line);
                return None;
            };
            if character == '\\' && !raw {
                let Some((taken, meant)) = escape(&rest[1..], bytes) else {
                    let line = self.rest().lines().next().unwrap_or_default().len();
                    self.fault(at, "Syntax error: token recognition error: invalid escape sequence");
                    self.at += line;
                    return None;
                };
                found.extend(meant);
                position += 1 + taken;
            } else {
                if character == '\\' {
                    // In a raw text a backslash keeps the quote after it from ending the text.
                    found.push(b'\\');
                    position += 1;
                    if let Some(after) = text[position..].chars().next() {
                        found.extend(after.to_string().bytes());
                        position += after.len_utf8();
                    }
                    continue;
                }
                found.extend(character.to_string().bytes());
                position += character.len_utf8();
            }
        }
        if bytes {
            return Some(Token::Literal(Literal::Bytes(Arc::new(found))));
        }
        let text = String::from_utf8(found);
        if text.is_err() {
            self.fault(at, "invalid string literal");
        }
        Some(Token::Literal(Literal::Text(Arc::new(text.unwrap_or_default()))))
    }
}

/// Returns the text between backticks, if it is the name of a field.
fn quoted(rest: &str) -> Option<&str> {
    let (name, _) = rest.strip_prefix('`')?.split_once('`')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'/' | b' ');
    (!name.is_empty() && name.bytes().all(plain)).then_some(name)
}

/// Returns the length of a string literal's prefix, whether it is raw, and whether it is bytes.
fn string_prefix(rest: &str) -> Option<(usize, bool, bool)> {
    let length = rest.bytes().take_while(|b| matches!(b, b'r' | b'R' | b'b' | b'B')).count();
    let prefix = rest[..length].to_ascii_lowercase();
    let quoted = rest[length..].starts_with(['"', '\'']);
    match prefix.as_str() {
        "" | "r" | "b" | "rb" | "br" if quoted => Some((length, prefix.contains('r'), prefix.contains('b'))),
        _ => None,
    }
}

/// Decodes the escape after a backslash: the number of bytes it takes, and its meaning.
fn escape(rest: &str, bytes: bool) -> Option<(usize, Vec<u8>)> {
    let first = rest.chars().next()?;
    let simple = match first {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '?' | '"' | '\'' | '`' => first as u8,
        _ => 0,
    };
    if simple != 0 {
        return Some((1, vec![simple]));
    }
    let number = |from: usize, length: usize, radix: u32| {
        let digits = rest.get(from..from + length)?;
        let number = u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with(['+', '-']))?;
        let meant = if bytes && length < 4 {
            vec![u8::try_from(number).ok()?]
        } else {
            char::from_u32(number)?.to_string().into_bytes()
        };
        Some((from + length, meant))
    };
    match first {
        'x' | 'X' => number(1, 2, 16),
        'u' if !bytes => number(1, 4, 16),
        'U' if !bytes => number(1, 8, 16),
        '0'..='3' => number(0, 3, 8),
        _ => None,
    }
}
