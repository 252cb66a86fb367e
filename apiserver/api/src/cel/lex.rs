//! Characters to tokens.

use std::sync::Arc;

use super::ast::Literal;

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

/// What is wrong with the text, and where (byte offset).
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

/// Reads all tokens of a text; the last is [`Token::End`]. What begins no token is passed over, and told in the
/// second list.
pub fn tokens(source: &str) -> Result<(Vec<Lexed>, Vec<Fault>), Fault> {
    let mut lexer = Lexer { source, at: 0 };
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    loop {
        let next = match lexer.next() {
            Ok(next) => next,
            Err(Stop::Unknown(fault, after)) => {
                lexer.at = after;
                faults.push(fault);
                continue;
            }
            Err(Stop::Fault(fault)) => return Err(fault),
        };
        let end = next.token == Token::End;
        found.push(next);
        if end {
            return Ok((found, faults));
        }
    }
}

/// Why there is no token.
enum Stop {
    /// No token begins like this; another may begin at the offset.
    Unknown(Fault, usize),
    /// A token that means nothing.
    Fault(Fault),
}

struct Lexer<'t> {
    source: &'t str,
    at: usize,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn fault<T>(at: usize, message: impl Into<String>) -> Result<T, Stop> {
        Err(Stop::Fault(Fault { at, message: message.into() }))
    }

    /// No token begins with `shown`, which stands at `at`.
    fn unknown<T>(at: usize, shown: &str) -> Result<T, Stop> {
        let message = format!("Syntax error: token recognition error at: '{shown}'");
        Err(Stop::Unknown(Fault { at, message }, at + shown.len()))
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

    fn next(&mut self) -> Result<Lexed, Stop> {
        self.skip();
        let at = self.at;
        let token = self.token()?;
        Ok(Lexed { token, at, end: self.at })
    }

    fn token(&mut self) -> Result<Token, Stop> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        let digit_follows = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
        if first.is_ascii_digit() || first == '.' && digit_follows {
            return self.number();
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
            return Ok(token);
        }
        if let Some(name) = quoted(rest).map(str::to_owned) {
            self.at += name.len() + 2;
            return Ok(Token::Quoted(name));
        }
        match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            Some(sign) => {
                self.at += sign.len();
                Ok(Token::Sign(sign))
            }
            None => Self::unknown(self.at, &rest[..first.len_utf8()]),
        }
    }

    fn number(&mut self) -> Result<Token, Stop> {
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
            return match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Token::Literal(Literal::Double(number))),
                _ => Self::fault(at, "invalid double literal"),
            };
        }
        self.whole(at, &text, 10)
    }

    /// The value of digits; an integer of more than 63 bits may be the largest negative one.
    fn whole(&mut self, at: usize, digits: &str, radix: u32) -> Result<Token, Stop> {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            return match u64::from_str_radix(digits, radix) {
                Ok(number) => Ok(Token::Literal(Literal::Uint(number))),
                Err(_) => Self::fault(at, "invalid uint literal"),
            };
        }
        let negative = self.source[..at].ends_with('-');
        match i64::from_str_radix(digits, radix) {
            Ok(number) => Ok(Token::Literal(Literal::Int(number))),
            // Taken back by the sign in front of it, and refused without one.
            Err(_) if negative && u64::from_str_radix(digits, radix) == Ok(1 << 63) => {
                Ok(Token::Literal(Literal::Int(i64::MIN)))
            }
            Err(_) => Self::fault(at - usize::from(negative), "invalid int literal"),
        }
    }

    fn string(&mut self, (length, raw, bytes): (usize, bool, bool)) -> Result<Token, Stop> {
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
                let shown = &self.source[at..];
                let shown = shown.lines().next().unwrap_or_default();
                return Self::unknown(at, shown);
            };
            if character == '\\' && !raw {
                let Some((taken, meant)) = escape(&rest[1..], bytes) else {
                    return Self::fault(at, "Syntax error: token recognition error: invalid escape sequence");
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
            return Ok(Token::Literal(Literal::Bytes(Arc::new(found))));
        }
        match String::from_utf8(found) {
            Ok(text) => Ok(Token::Literal(Literal::Text(Arc::new(text)))),
            Err(_) => Self::fault(at, "invalid string literal"),
        }
    }
}

/// What stands between backticks, if it is a field's name.
fn quoted(rest: &str) -> Option<&str> {
    let (name, _) = rest.strip_prefix('`')?.split_once('`')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'/' | b' ');
    (!name.is_empty() && name.bytes().all(plain)).then_some(name)
}

/// How long the prefix of a text is, whether it is raw, and whether it is bytes.
fn string_prefix(rest: &str) -> Option<(usize, bool, bool)> {
    let length = rest.bytes().take_while(|b| matches!(b, b'r' | b'R' | b'b' | b'B')).count();
    let prefix = rest[..length].to_ascii_lowercase();
    let quoted = rest[length..].starts_with(['"', '\'']);
    match prefix.as_str() {
        "" | "r" | "b" | "rb" | "br" if quoted => Some((length, prefix.contains('r'), prefix.contains('b'))),
        _ => None,
    }
}

/// What follows a backslash: how many bytes it takes and what it means.
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
