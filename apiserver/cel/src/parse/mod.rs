//! Tokens to trees, by recursive descent: in one pass, in time linear in the length of the text.

mod macros;

use crate::ast::{Call, Entry, Expr, Literal, Node, Select};
use crate::lex::{Fault, Lexed, RESERVED, Token, tokens};
use crate::limits::{EXPRESSION_BYTES, NESTING, TREE_DEPTH};

const OPERAND: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// Parses an expression. Errors are in the order of the text.
pub fn parse(source: &str) -> Result<Node, Vec<Fault>> {
    parse_with(source, false)
}

/// Parses an expression, which may use `cel.bind` if it has `bindings`.
pub fn parse_with(source: &str, bindings: bool) -> Result<Node, Vec<Fault>> {
    if source.len() > EXPRESSION_BYTES {
        return Err(vec![Fault {
            at: 0,
            message: format!("expression is longer than {EXPRESSION_BYTES} bytes"),
        }]);
    }
    let (tokens, faults) = tokens(source);
    let mut parser = Parser { source, tokens, next: 0, ids: 0, nesting: 0, deep: false, bindings, faults };
    let parsed = parser.expression().and_then(|node| {
        parser.end()?;
        Ok(node)
    });
    let mut faults = parser.faults;
    match parsed {
        Err(fault) => faults.push(fault),
        Ok(node) if faults.is_empty() => return Ok(node),
        Ok(_) => {}
    }
    faults.sort_by_key(|fault| fault.at);
    Err(faults)
}

/// The state of the parser; macros make nodes with it too.
pub struct Parser<'t> {
    source: &'t str,
    tokens: Vec<Lexed>,
    next: usize,
    ids: usize,
    nesting: usize,
    /// It was complained about the depth already.
    deep: bool,
    /// `cel.bind` is a macro.
    bindings: bool,
    /// Errors after which parsing continues.
    pub faults: Vec<Fault>,
}

type Parsed = Result<Node, Fault>;

impl Parser<'_> {
    /// Makes a node with a number of its own. One above too many others is an error and replaces all of them:
    /// no walk, not even the one that drops it, may meet a tree that is too deep for a stack.
    pub fn node(&mut self, at: usize, expr: Expr) -> Node {
        self.ids += 1;
        let depth = expr.depth_below().saturating_add(1);
        if depth <= TREE_DEPTH {
            return Node { at, id: self.ids - 1, depth, expr };
        }
        if !self.deep {
            self.deep = true;
            self.faults
                .push(Fault { at: 0, message: format!("expression is nested deeper than {TREE_DEPTH}") });
        }
        Node { at, id: self.ids - 1, depth: 1, expr: Expr::Literal(Literal::Null) }
    }

    fn call(&mut self, at: usize, function: &str, args: Vec<Node>) -> Node {
        self.node(at, Expr::Call(Call { function: function.to_owned(), target: None, args }))
    }

    fn peek(&self) -> &Lexed {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek().token, Token::Sign(found) if found == sign)
    }

    fn take(&mut self, sign: &str) -> Option<usize> {
        let at = self.is(sign).then(|| self.peek().at)?;
        self.next += 1;
        Some(at)
    }

    fn one_of(&mut self, signs: &[&'static str]) -> Option<(usize, &'static str)> {
        let sign = signs.iter().find(|sign| self.is(sign))?;
        let at = self.take(sign)?;
        Some((at, sign))
    }

    fn shown(&self) -> String {
        let token = self.peek();
        if token.token == Token::End {
            "<EOF>".to_owned()
        } else {
            self.source[token.at..token.end].to_owned()
        }
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T, Fault> {
        let message = format!("Syntax error: mismatched input '{}' expecting {expected}", self.shown());
        Err(Fault { at: self.peek().at, message })
    }

    /// Returns the error for a dot that is not followed by a name.
    fn no_name<T>(&self) -> Result<T, Fault> {
        let Lexed { at, end, .. } = *self.peek();
        let message = format!("Syntax error: no viable alternative at input '.{}'", &self.source[at..end]);
        Err(Fault { at, message })
    }

    fn expect(&mut self, sign: &str) -> Result<usize, Fault> {
        match self.take(sign) {
            Some(at) => Ok(at),
            None => self.unexpected(&format!("'{sign}'")),
        }
    }

    /// Expects the closing bracket; at the end of the text it is only missing.
    fn close(&mut self, sign: &str) -> Result<usize, Fault> {
        if self.peek().token != Token::End {
            return self.expect(sign);
        }
        Err(Fault { at: self.peek().at, message: format!("Syntax error: missing '{sign}' at '<EOF>'") })
    }

    /// The end of a list of things between commas.
    fn close_list(&mut self, sign: &str) -> Result<(), Fault> {
        match self.take(sign) {
            Some(_) => Ok(()),
            None => self.unexpected(&format!("{{'{sign}', ','}}")),
        }
    }

    fn end(&mut self) -> Result<(), Fault> {
        if self.peek().token == Token::End {
            return Ok(());
        }
        let last = self.tokens.len() == self.next + 2;
        let word = if last { "extraneous" } else { "mismatched" };
        let message = format!("Syntax error: {word} input '{}' expecting <EOF>", self.shown());
        Err(Fault { at: self.peek().at, message })
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        self.nesting += 1;
        if self.nesting > NESTING {
            let message = format!("expression is nested deeper than {NESTING}");
            return Err(Fault { at: self.peek().at, message });
        }
        let read = read(self);
        self.nesting -= 1;
        read
    }

    fn expression(&mut self) -> Parsed {
        self.nested(|parser| {
            let condition = parser.chain("||", "_||_", |p| p.chain("&&", "_&&_", Self::relation))?;
            let Some(at) = parser.take("?") else { return Ok(condition) };
            let yes = parser.chain("||", "_||_", |p| p.chain("&&", "_&&_", Self::relation))?;
            parser.expect(":")?;
            let no = parser.expression()?;
            Ok(parser.call(at, "_?_:_", vec![condition, yes, no]))
        })
    }

    /// Parses terms joined by one logical operator, into a tree as flat as possible.
    fn chain(&mut self, sign: &str, function: &str, term: impl Fn(&mut Self) -> Parsed) -> Parsed {
        let mut terms = vec![term(self)?];
        let mut places = Vec::new();
        while let Some(at) = self.take(sign) {
            places.push(at);
            terms.push(term(self)?);
        }
        Ok(self.balanced(function, terms, &places))
    }

    fn balanced(&mut self, function: &str, mut terms: Vec<Node>, places: &[usize]) -> Node {
        if places.is_empty() {
            return terms.swap_remove(0);
        }
        let middle = places.len() / 2;
        let right = terms.split_off(middle + 1);
        let left = self.balanced(function, terms, &places[..middle]);
        let right = self.balanced(function, right, &places[middle + 1..]);
        self.call(places[middle], function, vec![left, right])
    }

    fn relation(&mut self) -> Parsed {
        let mut left = self.sum()?;
        while let Some((at, sign)) = self.one_of(&["<", "<=", ">=", ">", "==", "!=", "in"]) {
            let right = self.sum()?;
            let function = if sign == "in" { "@in".to_owned() } else { format!("_{sign}_") };
            left = self.call(at, &function, vec![left, right]);
        }
        Ok(left)
    }

    fn sum(&mut self) -> Parsed {
        let mut left = self.product()?;
        while let Some((at, sign)) = self.one_of(&["+", "-"]) {
            let right = self.product()?;
            left = self.call(at, &format!("_{sign}_"), vec![left, right]);
        }
        Ok(left)
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.unary()?;
        while let Some((at, sign)) = self.one_of(&["*", "/", "%"]) {
            let right = self.unary()?;
            left = self.call(at, &format!("_{sign}_"), vec![left, right]);
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed {
        let Some((at, sign)) = self.one_of(&["!", "-"]) else { return self.member() };
        if let (Token::Literal(literal), "-") = (&self.peek().token, sign) {
            let negative = match literal {
                Literal::Int(number) => Some(Literal::Int(number.wrapping_neg())),
                Literal::Double(number) => Some(Literal::Double(-number)),
                _ => None,
            };
            if let Some(negative) = negative {
                self.next += 1;
                let node = self.node(at, Expr::Literal(negative));
                return self.members(node);
            }
        }
        let mut times = 1_usize;
        while self.take(sign).is_some() {
            times += 1;
        }
        let operand = self.member()?;
        // Twice is not at all.
        if times.is_multiple_of(2) {
            return Ok(operand);
        }
        Ok(self.call(at, if sign == "!" { "!_" } else { "-_" }, vec![operand]))
    }

    fn member(&mut self) -> Parsed {
        let node = self.primary()?;
        self.members(node)
    }

    fn members(&mut self, mut node: Node) -> Parsed {
        loop {
            if let Some(at) = self.take(".") {
                let optional = self.take("?").is_some();
                let (field, quoted) = match self.peek().token.clone() {
                    Token::Name(field) => (field, false),
                    Token::Quoted(field) => (field, true),
                    _ if optional => return self.unexpected("IDENTIFIER"),
                    _ => return self.no_name(),
                };
                self.next += 1;
                let call = if quoted { None } else { self.take("(") };
                node = match call {
                    Some(open) if !optional => {
                        let args = self.arguments()?;
                        macros::member(self, open, field, node, args)
                    }
                    Some(_) => {
                        self.next -= 1;
                        return self.unexpected("<EOF>");
                    }
                    None => {
                        let select = Select { operand: Box::new(node), field, test: false, optional };
                        self.node(at, Expr::Select(select))
                    }
                };
            } else if let Some(at) = self.take("[") {
                let function = if self.take("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.close("]")?;
                node = self.call(at, function, vec![node, index]);
            } else {
                return Ok(node);
            }
        }
    }

    /// Parses the arguments of a call up to the closing bracket; the opening one was read.
    fn arguments(&mut self) -> Result<Vec<Node>, Fault> {
        let mut args = Vec::new();
        if self.take(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expression()?);
            if self.take(",").is_none() {
                self.expect(")")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        let Lexed { token, at, .. } = self.peek().clone();
        match token {
            Token::Literal(Literal::Int(i64::MIN)) => {
                Err(Fault { at, message: "invalid int literal".to_owned() })
            }
            Token::Literal(literal) => {
                self.next += 1;
                Ok(self.node(at, Expr::Literal(literal)))
            }
            Token::Name(_) => self.name(at),
            Token::Sign(".") => {
                self.next += 1;
                if matches!(self.peek().token, Token::Name(_)) { self.name(at) } else { self.no_name() }
            }
            Token::Sign(word @ ("true" | "false" | "null")) => {
                self.next += 1;
                let literal = if word == "null" { Literal::Null } else { Literal::Bool(word == "true") };
                Ok(self.node(at, Expr::Literal(literal)))
            }
            Token::Sign("(") => {
                self.next += 1;
                let inner = self.expression()?;
                self.close(")")?;
                Ok(inner)
            }
            Token::Sign("[") => self.list(at),
            Token::Sign("{") => {
                self.next += 1;
                let entries = self.entries()?;
                Ok(self.node(at, Expr::Map(entries)))
            }
            _ if self.begins_after() => {
                let message =
                    format!("Syntax error: extraneous input '{}' expecting {OPERAND}", self.shown());
                Err(Fault { at, message })
            }
            // If a term is missing, the operator after it is still read.
            Token::Sign("*" | "/" | "%") => {
                let message =
                    format!("Syntax error: mismatched input '{}' expecting {OPERAND}", self.shown());
                self.faults.push(Fault { at, message });
                Ok(self.node(at, Expr::Literal(Literal::Null)))
            }
            _ => self.unexpected(OPERAND),
        }
    }

    /// Returns `true` if the token after the next could begin what is expected here.
    fn begins_after(&self) -> bool {
        match self.tokens.get(self.next + 1).map(|lexed| &lexed.token) {
            Some(Token::Name(_) | Token::Literal(_)) => true,
            Some(Token::Sign(sign)) => {
                matches!(*sign, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null")
            }
            _ => false,
        }
    }

    /// A name, a call of a function, or `Name{…}`.
    fn name(&mut self, at: usize) -> Parsed {
        let Token::Name(name) = self.peek().token.clone() else { return self.unexpected("IDENTIFIER") };
        self.next += 1;
        if let Some(open) = self.take("(") {
            let args = self.arguments()?;
            return Ok(macros::global(self, open, name, args));
        }
        if let Some(message) = self.message(&name)? {
            return Ok(message);
        }
        if RESERVED.contains(&name.as_str()) {
            self.faults.push(Fault { at, message: format!("reserved identifier: {name}") });
        }
        Ok(self.node(at, Expr::Ident(name)))
    }

    /// `Name.Other{field: value}`, the first name of which was read.
    fn message(&mut self, first: &str) -> Result<Option<Node>, Fault> {
        let (mut next, mut name) = (self.next, first.to_owned());
        while let (Some(Token::Sign(".")), Some(Token::Name(part))) =
            (self.tokens.get(next).map(|l| &l.token), self.tokens.get(next + 1).map(|l| &l.token))
        {
            name = format!("{name}.{part}");
            next += 2;
        }
        if !matches!(self.tokens.get(next).map(|l| &l.token), Some(Token::Sign("{"))) {
            return Ok(None);
        }
        let at = self.tokens[next].at;
        self.next = next + 1;
        let mut fields = Vec::new();
        while self.take("}").is_none() {
            let Token::Name(field) = self.peek().token.clone() else { return self.unexpected("IDENTIFIER") };
            self.next += 1;
            self.expect(":")?;
            fields.push((field, self.expression()?));
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(Some(self.node(at, Expr::Struct(name, fields))))
    }

    fn list(&mut self, at: usize) -> Parsed {
        self.next += 1;
        let mut items = Vec::new();
        while self.take("]").is_none() {
            let optional = self.take("?").is_some();
            items.push((self.expression()?, optional));
            if self.take(",").is_none() {
                self.close_list("]")?;
                break;
            }
        }
        Ok(self.node(at, Expr::List(items)))
    }

    fn entries(&mut self) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::new();
        while self.take("}").is_none() {
            let optional = self.take("?").is_some();
            let key = self.expression()?;
            self.expect(":")?;
            entries.push(Entry { key, value: self.expression()?, optional });
            if self.take(",").is_none() {
                self.close_list("}")?;
                break;
            }
        }
        Ok(entries)
    }
}
