//! The members of an etcd cluster: listed, added as learners, promoted, removed.

use etcd_client::{ClusterClient, MemberAddOptions};

use super::{CONNECT_TIMEOUT, EtcdTls, TIMEOUT, options, within};
use crate::StoreError;

/// A member of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until the member has started for the first time.
    pub name: String,
    /// URLs at which other members reach it.
    pub peer_urls: Vec<String>,
    /// URLs at which clients reach it; none until it has started.
    pub client_urls: Vec<String>,
    /// The member receives the data and has no vote yet.
    pub learner: bool,
}

/// A client of the member API.
pub struct Members(ClusterClient);

impl Members {
    /// Connects to the first member that answers, of members given as URLs, `https://…` with `tls`. Fails with the
    /// error of the last one if none does.
    pub async fn connect(endpoints: &[String], tls: Option<EtcdTls>) -> Result<Self, StoreError> {
        // One client for all of them would send each request to the member that is first to accept or to refuse: one
        // that is gone refuses before another one has finished its handshake, again and again.
        let mut last = None;
        for endpoint in endpoints {
            match Self::connect_one(endpoint, tls.clone()).await {
                Ok(members) => return Ok(members),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| StoreError::Unavailable {
            attempted: "connect to etcd: no member is known".to_owned(),
            cause: None,
        }))
    }

    async fn connect_one(endpoint: &str, tls: Option<EtcdTls>) -> Result<Self, StoreError> {
        let attempted = format!("connect to etcd at {endpoint}");
        let connecting = etcd_client::Client::connect([endpoint], Some(options(tls)));
        let client = within(CONNECT_TIMEOUT, &attempted, connecting).await?;
        let mut members = Self(client.cluster_client());
        // The connection is made with the first request.
        within(TIMEOUT, &attempted, members.0.member_list()).await?;
        Ok(members)
    }

    /// Returns the members that the answering member knows of.
    pub async fn list(&mut self) -> Result<Vec<Member>, StoreError> {
        let response = within(TIMEOUT, "list the members of etcd", self.0.member_list()).await?;
        Ok(response.members().iter().map(member).collect())
    }

    /// Adds a member without a vote; returns its ID and all members.
    pub async fn add_learner(&mut self, peer_url: &str) -> Result<(u64, Vec<Member>), StoreError> {
        let attempted = format!("add the etcd member at {peer_url}");
        let options = MemberAddOptions::new().with_is_learner();
        let response =
            within(TIMEOUT, &attempted, self.0.member_add([peer_url.to_owned()], Some(options))).await?;
        let id = response.member().map_or(0, etcd_client::Member::id);
        Ok((id, response.member_list().iter().map(member).collect()))
    }

    /// Gives a learner its vote. Fails until it has received the data.
    pub async fn promote(&mut self, id: u64) -> Result<(), StoreError> {
        let attempted = format!("promote the etcd member {id:x}");
        within(TIMEOUT, &attempted, self.0.member_promote(id)).await.map(drop)
    }

    /// Removes a member; its process ends.
    pub async fn remove(&mut self, id: u64) -> Result<(), StoreError> {
        let attempted = format!("remove the etcd member {id:x}");
        within(TIMEOUT, &attempted, self.0.member_remove(id)).await.map(drop)
    }
}

fn member(found: &etcd_client::Member) -> Member {
    Member {
        id: found.id(),
        name: found.name().to_owned(),
        peer_urls: found.peer_urls().to_vec(),
        client_urls: found.client_urls().to_vec(),
        learner: found.is_learner(),
    }
}
