//! The plugins of CoreDNS that change questions and answers, compiled once for each server block that has one. They
//! have their turn in this order, whatever the order of the lines:
//!
//! ```text
//! local, dns64, acl, any, rewrite, autopath, acl, (cache,) minimal, template, (hosts, kubernetes, forward)
//! ```
//!
//! It is CoreDNS' order but for `acl`, which looks at the client's question as well as at the one that is looked up in its
//! place. CoreDNS looks at one of them: the first before 1.14.2, the second since. Either can be used to get around a
//! rule about the other.

mod acl;
mod autopath;
mod dns64;
mod local;
mod pattern;
mod records;
mod response;
mod rewrite;
mod template;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

pub use autopath::Autopath;
pub use dns64::Dns64;
pub use response::Response;
pub use rewrite::Rewritten;

use crate::limits;
use crate::name::Name;
use crate::syntax::{Directive, LineError, wrong};
use crate::wire;

/// The plugins of one server block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    local: Option<local::Local>,
    pub dns64: Option<Dns64>,
    any: bool,
    rewrite: Vec<rewrite::Rule>,
    pub autopath: Option<Autopath>,
    acl: Vec<acl::Rule>,
    /// Answers have no records that nobody asked for.
    pub minimal: bool,
    template: Vec<template::Template>,
    /// The number of regular expressions.
    patterns: usize,
}

/// A question as plugins see it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub name: Name,
    pub kind: u16,
    pub class: u16,
    pub client: IpAddr,
}

/// A plugin that makes answers, for the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    Local,
    Any,
    Acl,
    Template,
}

/// The way in which a question is answered.
#[derive(Clone, Debug)]
pub enum Plan {
    /// By the server, without plugins.
    Pass,
    /// There is no answer.
    Silence,
    /// By this response.
    Reply(Box<Response>, Plugin),
    /// In steps, of which each may take time.
    Steps,
}

impl Chain {
    /// Adds a line. Returns `false` if it is of no plugin of these.
    pub fn add(&mut self, plugin: &Directive, zones: &[Name]) -> Result<bool, LineError> {
        let line = plugin.line;
        match plugin.name() {
            "local" => self.local = Some(local::Local::parse(plugin)?),
            "dns64" => self.dns64 = Some(Dns64::parse(plugin)?),
            "any" | "minimal" if plugin.words.len() > 1 || !plugin.block.is_empty() => {
                return wrong(line, format!("{}: nothing stands behind it", plugin.name()));
            }
            "any" => self.any = true,
            "minimal" => self.minimal = true,
            "rewrite" => self.rewrite.push(rewrite::Rule::parse(plugin, &mut self.patterns)?),
            "autopath" if self.autopath.is_some() => {
                return wrong(line, "`autopath` stands twice in a block");
            }
            "autopath" => self.autopath = Some(Autopath::parse(plugin, zones)?),
            "acl" => self.acl.push(acl::Rule::parse(plugin, zones)?),
            "template" => self.template.push(template::Template::parse(plugin, zones, &mut self.patterns)?),
            _ => return Ok(false),
        }
        if self.rewrite.len().max(self.acl.len()).max(self.template.len()) > limits::RULES {
            return wrong(line, format!("there are more than {} such lines in a block", limits::RULES));
        }
        if self.patterns > limits::PATTERNS {
            return wrong(
                line,
                format!("there are more than {} regular expressions in a block", limits::PATTERNS),
            );
        }
        Ok(true)
    }

    /// Returns `true` if there is no plugin.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns a chain with the search list that `autopath` reads from a file.
    pub fn searching(chain: &Arc<Self>, read: &dyn Fn(&Path) -> String) -> Arc<Self> {
        if chain.autopath.is_none() {
            return Arc::clone(chain);
        }
        let mut chain = Self::clone(chain);
        if let Some(autopath) = &mut chain.autopath {
            autopath.set_search(&read(&autopath.file()));
        }
        Arc::new(chain)
    }

    /// Decides how a question is answered. `short` tells that `autopath` has to try several names.
    pub fn plan(&self, asked: &Asked, short: impl FnOnce(&Autopath) -> bool) -> Plan {
        if asked.class == wire::INTERNET {
            if let Some(response) = self.local.as_ref().and_then(|local| local.answer(asked)) {
                return Plan::Reply(Box::new(response), Plugin::Local);
            }
            if self.dns64.as_ref().is_some_and(|dns64| dns64.concerns(asked)) {
                return Plan::Steps;
            }
        }
        if let Some(plan) = self.refused(asked) {
            return plan;
        }
        if asked.class == wire::INTERNET {
            if self.any && asked.kind == wire::ANY {
                return Plan::Reply(Box::new(response::no_any(&asked.name)), Plugin::Any);
            }
            if rewrite::concern(&self.rewrite, asked) || self.autopath.as_ref().is_some_and(short) {
                return Plan::Steps;
            }
        }
        // The target of an alias is looked up, which takes time.
        match self.by_template(asked) {
            Plan::Reply(response, Plugin::Template) if response.alias(asked.kind).is_some() => Plan::Steps,
            plan => plan,
        }
    }

    /// Returns silence or a response without records if a rule of `acl` keeps the client from a name.
    pub fn refused(&self, asked: &Asked) -> Option<Plan> {
        let code = match self.acl.iter().find_map(|rule| rule.decide(asked))? {
            acl::Action::Drop => return Some(Plan::Silence),
            acl::Action::Block => wire::REFUSED,
            acl::Action::Filter => wire::NO_ERROR,
            acl::Action::Allow => return None,
        };
        Some(Plan::Reply(Box::new(Response::failure(code)), Plugin::Acl))
    }

    /// Returns the code of the answer if a rule of `acl` keeps the client from a name that another one leads to. Where the
    /// question would be dropped, it is refused: the other name is answered.
    pub fn refusal(&self, asked: &Asked) -> Option<u8> {
        match self.refused(asked)? {
            Plan::Reply(response, _) => Some(response.code),
            _ => Some(wire::REFUSED),
        }
    }

    /// Returns what comes of a question behind `rewrite` and `autopath`: never steps.
    pub fn late(&self, asked: &Asked) -> Plan {
        self.refused(asked).unwrap_or_else(|| self.by_template(asked))
    }

    fn by_template(&self, asked: &Asked) -> Plan {
        if asked.class != wire::INTERNET {
            return Plan::Pass;
        }
        let response = self.template.iter().find_map(|template| template.answer(asked));
        response.map_or(Plan::Pass, |response| Plan::Reply(Box::new(response), Plugin::Template))
    }

    /// Applies the rules of `rewrite` to a question.
    pub fn rewrite(&self, asked: &Asked) -> Rewritten<'_> {
        Rewritten::of(&self.rewrite, asked)
    }
}

/// Returns the longest of zones that a name is below.
fn zone_of<'a>(zones: &'a [Name], name: &Name) -> Option<&'a Name> {
    zones.iter().filter(|zone| name.below(zone).is_some()).max_by_key(|zone| zone.bytes().len())
}

/// Returns the number of a type, such as 28 for `AAAA`.
fn kind(text: &str, directive: &Directive) -> Result<u16, LineError> {
    response::kind(text).map_or_else(
        || wrong(directive.line, format!("{text:?} is not the type of a record, such as A or AAAA")),
        Ok,
    )
}

#[cfg(test)]
mod tests;
