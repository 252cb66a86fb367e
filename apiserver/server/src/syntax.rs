//! Errors of text that is not JSON, in the words of Go's decoder: people know them, and clients' tests
//! compare them.

/// The reason why a text is not JSON.
enum Fault {
    /// It ends too soon.
    End,
    /// A byte that is not allowed at its place, and the description of the place.
    Byte(u8, String),
}

impl Fault {
    fn at(byte: u8, place: &str) -> Self {
        Self::Byte(byte, place.to_owned())
    }
}

/// Returns the first fault of a text; nothing if it follows the grammar of JSON. It recurses nowhere.
pub fn fault(text: &[u8]) -> Option<String> {
    match (Reader { text, at: 0 }).document() {
        Ok(()) => None,
        Err(Fault::End) => Some("unexpected end of JSON input".to_owned()),
        Err(Fault::Byte(byte, place)) => Some(format!("invalid character {} {place}", quoted(byte))),
    }
}

/// Returns the number that is shown as `shown` after parsing, as the text writes it: Go reports unusable
/// numbers as they were written.
pub fn spelling<'a>(text: &'a [u8], shown: &str) -> Option<&'a str> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let from = at;
        at += 1;
        match byte {
            b'"' => {
                while let Some(&byte) = text.get(at).filter(|byte| **byte != b'"') {
                    at += if byte == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let rest = text[at..].iter();
                at +=
                    rest.take_while(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')).count();
                let number: Option<serde_json::Number> = serde_json::from_slice(&text[from..at]).ok();
                if number.is_some_and(|number| number.to_string() == shown) {
                    return std::str::from_utf8(&text[from..at]).ok();
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns a byte between single quotes as Go shows it, which takes it for the character of that number.
fn quoted(byte: u8) -> String {
    let shown = match byte {
        b'\'' => "\\'".to_owned(),
        b'\\' => "\\\\".to_owned(),
        0x07 => "\\a".to_owned(),
        0x08 => "\\b".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\n' => "\\n".to_owned(),
        0x0b => "\\v".to_owned(),
        0x0c => "\\f".to_owned(),
        b'\r' => "\\r".to_owned(),
        0..0x20 | 0x7f => format!("\\x{byte:02x}"),
        0x80..=0xa0 | 0xad => format!("\\u{byte:04x}"),
        other => char::from(other).to_string(),
    };
    format!("'{shown}'")
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Result<u8, Fault> {
        self.text.get(self.at).copied().ok_or(Fault::End)
    }

    fn next(&mut self) -> Result<u8, Fault> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    /// Returns the next byte that is not white space.
    fn visible(&mut self) -> Result<u8, Fault> {
        loop {
            let byte = self.next()?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Ok(byte);
            }
        }
    }

    /// One value and nothing else.
    fn document(&mut self) -> Result<(), Fault> {
        // The brackets that are open.
        let mut open = Vec::new();
        let mut byte = self.visible()?;
        loop {
            let opened = match byte {
                b'{' => self.first_key(&mut open)?,
                b'[' => {
                    byte = self.visible()?;
                    if byte != b']' {
                        open.push(b'[');
                        continue;
                    }
                    false
                }
                byte => {
                    self.scalar(byte)?;
                    false
                }
            };
            if !opened && !self.goes_on(&mut open)? {
                return Ok(());
            }
            byte = self.visible()?;
        }
    }

    /// Reads on after an opening brace; returns true if a value follows, after its key.
    fn first_key(&mut self, open: &mut Vec<u8>) -> Result<bool, Fault> {
        match self.visible()? {
            b'}' => Ok(false),
            byte => {
                open.push(b'{');
                self.key(byte)?;
                Ok(true)
            }
        }
    }

    fn key(&mut self, byte: u8) -> Result<(), Fault> {
        if byte != b'"' {
            return Err(Fault::at(byte, "looking for beginning of object key string"));
        }
        self.string()?;
        match self.visible()? {
            b':' => Ok(()),
            byte => Err(Fault::at(byte, "after object key")),
        }
    }

    /// Reads on after a value, closing the brackets that end; returns true if another value follows.
    fn goes_on(&mut self, open: &mut Vec<u8>) -> Result<bool, Fault> {
        loop {
            match (open.last(), self.visible()) {
                (None, Err(_)) => return Ok(false),
                (None, Ok(byte)) => return Err(Fault::at(byte, "after top-level value")),
                (Some(b'['), Ok(b',')) => return Ok(true),
                (Some(b'['), Ok(b']')) | (Some(b'{'), Ok(b'}')) => drop(open.pop()),
                (Some(b'{'), Ok(b',')) => {
                    let byte = self.visible()?;
                    self.key(byte)?;
                    return Ok(true);
                }
                (Some(b'['), Ok(byte)) => return Err(Fault::at(byte, "after array element")),
                (Some(_), Ok(byte)) => return Err(Fault::at(byte, "after object key:value pair")),
                (Some(_), Err(end)) => return Err(end),
            }
        }
    }

    fn scalar(&mut self, first: u8) -> Result<(), Fault> {
        match first {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(first),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            byte => Err(Fault::at(byte, "looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), Fault> {
        for expected in word.bytes().skip(1) {
            let byte = self.next()?;
            if byte != expected {
                let place = format!("in literal {word} (expecting {})", quoted(expected));
                return Err(Fault::Byte(byte, place));
            }
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Fault> {
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                byte @ 0..0x20 => return Err(Fault::at(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), Fault> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(()),
            b'u' => {
                for _ in 0..4 {
                    let byte = self.next()?;
                    if !byte.is_ascii_hexdigit() {
                        return Err(Fault::at(byte, "in \\u hexadecimal character escape"));
                    }
                }
                Ok(())
            }
            byte => Err(Fault::at(byte, "in string escape code")),
        }
    }

    fn number(&mut self, first: u8) -> Result<(), Fault> {
        let first = match first {
            b'-' => self.next()?,
            digit => digit,
        };
        match first {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            byte => return Err(Fault::at(byte, "in numeric literal")),
        }
        if self.peek().is_ok_and(|byte| byte == b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if self.peek().is_ok_and(|byte| matches!(byte, b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        Ok(())
    }

    fn some_digits(&mut self, place: &str) -> Result<(), Fault> {
        let byte = self.next()?;
        if !byte.is_ascii_digit() {
            return Err(Fault::at(byte, place));
        }
        self.digits();
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_ok_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn faults_are_told_in_gos_words() {
        for (text, why) in [
            ("", "unexpected end of JSON input"),
            ("{\"a\":[1,{\"b\":", "unexpected end of JSON input"),
            ("-", "unexpected end of JSON input"),
            ("1e", "unexpected end of JSON input"),
            ("nonsense", "invalid character 'o' in literal null (expecting 'u')"),
            ("tru ", "invalid character ' ' in literal true (expecting 'e')"),
            ("hello", "invalid character 'h' looking for beginning of value"),
            ("'a'", "invalid character '\\'' looking for beginning of value"),
            ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\":2}", "invalid character '\"' after object key:value pair"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{} {}", "invalid character '{' after top-level value"),
            ("[01]", "invalid character '1' after array element"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1e+x", "invalid character 'x' in exponent of numeric literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g0\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\u{1}", "invalid character '\\x01' looking for beginning of value"),
            ("\u{e9}", "invalid character '\u{c3}' looking for beginning of value"),
        ] {
            assert_eq!(fault(text.as_bytes()).as_deref(), Some(why), "{text}");
        }
        for text in [" {} ", "[[],{},\"\\u00e9\\n\",-0.5e-7,true,false,null]", "7"] {
            assert_eq!(fault(text.as_bytes()), None, "{text}");
        }
        assert_eq!(fault("[".repeat(1 << 20).as_bytes()).as_deref(), Some("unexpected end of JSON input"));
    }

    proptest! {
        /// Every text that the parser refuses has a fault, and every text that it accepts has none.
        #[test]
        fn the_grammar_is_the_parsers(text in "[\\[\\]{},:\"\\\\u0-9eE.+\\-truefalsn \t]{0,24}") {
            let read = serde_json::from_str::<Value>(&text);
            // Too large for a number, or half a pair: no matter of the grammar.
            let matter = read.as_ref().err().is_some_and(|error| {
                let why = error.to_string();
                why.contains("number out of range") || why.contains("surrogate") || why.contains("code point")
            });
            prop_assert!(matter || fault(text.as_bytes()).is_some() == read.is_err(), "{text:?} {read:?}");
        }
    }
}
