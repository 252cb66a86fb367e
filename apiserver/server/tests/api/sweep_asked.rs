//! Questions that the authorizer is asked, as its refusals report them.

use crate::api::harness::Reply;

/// The attributes that the authorizer reports that it was asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

impl Asked {
    /// From the refusal of a request for a kind; `None` for other paths.
    pub fn read(refusal: &Reply) -> Option<Self> {
        let said = refusal.message().split_once(" cannot ")?.1;
        let (verb, said) = said.split_once(" resource ")?;
        let quoted: Vec<&str> = said.split('"').skip(1).step_by(2).collect();
        let (resource, subresource) = quoted[0].split_once('/').unwrap_or((quoted[0], ""));
        let namespace = if said.contains(" at the cluster scope") { "" } else { quoted[2] };
        Some(Self {
            verb: verb.to_owned(),
            group: quoted[1].to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: refusal.body["details"]["name"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// Returns the name of the object: proxies have a scheme and a port next to it.
    pub fn object(&self) -> &str {
        let parts: Vec<&str> = self.name.split(':').collect();
        match parts[..] {
            [name, _] | [_, name, _] if self.subresource == "proxy" => name,
            _ => &self.name,
        }
    }
}
