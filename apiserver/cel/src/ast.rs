//! Expressions as trees. Macros are nodes of their own, so that types, costs and evaluation see a loop as it
//! was written.

use std::sync::Arc;

/// A node: its position in the text, and its content.
#[derive(Clone, Debug)]
pub struct Node {
    /// Byte offset in the source: of an operator, of the bracket of a call, of the point of a field.
    pub at: usize,
    /// Counts from 0 within an expression.
    pub id: usize,
    /// Nodes from here to the deepest one below, both counted: how deep an evaluation recurses.
    pub depth: usize,
    pub expr: Expr,
}

/// The content of a node.
#[derive(Clone, Debug)]
pub enum Expr {
    Literal(Literal),
    Ident(String),
    Select(Select),
    /// Operators are calls of `_+_`, `_[_]`, `_?_:_`, …
    Call(Call),
    /// Items, and whether each is optional (`[?x]`).
    List(Vec<(Node, bool)>),
    Map(Vec<Entry>),
    /// `Name{field: value}`
    Struct(String, Vec<(String, Node)>),
    Fold(Box<Fold>),
    Bind(Box<Bind>),
    Let(Box<Let>),
}

/// A constant. Texts are shared with the values that an evaluation makes of them, however often.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<String>),
    Bytes(Arc<Vec<u8>>),
}

/// `operand.field`, `operand.?field` or `has(operand.field)`.
#[derive(Clone, Debug)]
pub struct Select {
    pub operand: Box<Node>,
    pub field: String,
    pub test: bool,
    pub optional: bool,
}

/// A call of a function, or of a method of `target`.
#[derive(Clone, Debug)]
pub struct Call {
    pub function: String,
    pub target: Option<Box<Node>>,
    pub args: Vec<Node>,
}

/// An entry of a map that is written out.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Node,
    pub value: Node,
    pub optional: bool,
}

/// A loop over a list or a map.
#[derive(Clone, Debug)]
pub struct Fold {
    pub range: Node,
    /// The item or key; with a second variable the index or key.
    pub one: String,
    /// The item or value.
    pub two: Option<String>,
    pub form: Form,
    pub filter: Option<Node>,
    /// The expression that is evaluated for each item.
    pub each: Node,
}

/// The result that a loop computes from its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    All,
    Exists,
    ExistsOne,
    /// `map`, `transformList`
    List,
    Filter,
    /// `transformMap`
    Map,
    /// `transformMapEntry`
    Entries,
    SortBy,
}

/// `operand.optMap(name, body)` and `optFlatMap`.
#[derive(Clone, Debug)]
pub struct Bind {
    pub operand: Node,
    pub name: String,
    pub body: Node,
    /// `body` gives an optional itself.
    pub flat: bool,
}

/// `cel.bind(name, init, body)`. The initial value is evaluated when the body asks for it first, and once.
#[derive(Clone, Debug)]
pub struct Let {
    pub name: String,
    pub init: Node,
    pub body: Node,
}

impl Expr {
    /// The number of nodes from one directly below to the deepest one, as an evaluation goes.
    pub fn depth_below(&self) -> usize {
        match self {
            // The initial value is evaluated within the body.
            Self::Let(bound) => bound.init.depth.saturating_add(bound.body.depth),
            _ => self.children().into_iter().map(|child| child.depth).max().unwrap_or(0),
        }
    }

    /// The nodes directly below.
    pub fn children(&self) -> Vec<&Node> {
        match self {
            Self::Literal(_) | Self::Ident(_) => Vec::new(),
            Self::Select(select) => vec![&select.operand],
            Self::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
            Self::List(items) => items.iter().map(|(item, _)| item).collect(),
            Self::Map(entries) => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            Self::Struct(_, fields) => fields.iter().map(|(_, value)| value).collect(),
            Self::Fold(fold) => [&fold.range].into_iter().chain(&fold.filter).chain([&fold.each]).collect(),
            Self::Bind(bind) => vec![&bind.operand, &bind.body],
            Self::Let(bound) => vec![&bound.init, &bound.body],
        }
    }
}

impl Node {
    /// The nodes directly below.
    pub fn children(&self) -> Vec<&Node> {
        self.expr.children()
    }

    /// `a.b.c` as a text, if the node is nothing but names.
    pub fn qualified(&self) -> Option<String> {
        match &self.expr {
            Expr::Ident(name) => Some(name.clone()),
            Expr::Select(select) if !select.test && !select.optional => {
                Some(format!("{}.{}", select.operand.qualified()?, select.field))
            }
            _ => None,
        }
    }

    /// The leftmost name of [`Self::qualified`].
    pub fn root(&self) -> Option<&str> {
        match &self.expr {
            Expr::Ident(name) => Some(name),
            Expr::Select(select) if !select.test && !select.optional => select.operand.root(),
            _ => None,
        }
    }

    /// Returns `true` if a name that no loop declared occurs anywhere in it.
    pub fn mentions(&self, name: &str) -> bool {
        match &self.expr {
            Expr::Ident(found) => found == name,
            Expr::Fold(fold) if fold.one == name || fold.two.as_deref() == Some(name) => {
                fold.range.mentions(name)
            }
            Expr::Bind(bind) if bind.name == name => bind.operand.mentions(name),
            Expr::Let(bound) if bound.name == name => bound.init.mentions(name),
            _ => self.children().into_iter().any(|child| child.mentions(name)),
        }
    }
}
