//! The place of this machine's member in its cluster. A new member is added as a learner, receives the data, and is
//! promoted then, so that a member that cannot catch up never counts for the majority.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_meta::ambient::Ambient;
use apiserver_store::etcd::EtcdTls;
use apiserver_store::etcd::members::{Member, Members};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Initial, LocalEtcd, tls};
use crate::args::EtcdArgs;
use crate::control_plane;
use crate::limits;

/// Next step of a member that has no data.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Add,
    /// It was added before, and has never started.
    Use,
    /// An earlier member at the same address has lost its data.
    Replace(u64),
}

fn step(members: &[Member], peer_url: &str) -> Step {
    match members.iter().find(|member| member.peer_urls.iter().any(|url| url == peer_url)) {
        None => Step::Add,
        Some(member) if member.name.is_empty() => Step::Use,
        Some(member) => Step::Replace(member.id),
    }
}

/// Returns the learner of another machine that has been added and has never started.
fn unstarted(members: &[Member], peer_url: &str) -> Option<u64> {
    let others = members.iter().filter(|member| member.peer_urls.iter().all(|url| url != peer_url));
    others.filter(|member| member.learner && member.name.is_empty()).map(|member| member.id).next()
}

/// Returns the members that a new one named `name` starts with. Those that have never started have no name yet.
fn initial(members: &[Member], name: &str, peer_url: &str) -> Initial {
    let others = members.iter().filter(|member| member.peer_urls.iter().all(|url| url != peer_url));
    let pairs = others.flat_map(|member| {
        let name = if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() };
        member.peer_urls.iter().map(move |url| (name.clone(), url.clone()))
    });
    let own = (name.to_owned(), peer_url.to_owned());
    Initial::Existing(pairs.chain([own]).collect())
}

impl LocalEtcd {
    /// Starts the member, and returns once it answers with a vote. `others` are URLs for clients of members that were
    /// there before; without any, a member without data begins a new cluster. Waits for members that a majority
    /// needs. Returns early on shutdown.
    pub async fn start(&self, others: &[String], ambient: &Ambient, stop: &CancellationToken) -> Result<()> {
        self.certify(ambient)?;
        let flags = self.flags();
        let tls = tls(&flags)?;
        let initial = match (self.is_initialized(), others) {
            (true, _) => None,
            (false, []) => Some(Initial::First { token: ambient.uid() }),
            (false, others) => tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                admitted = self.admit(others, &tls, limits::LEARNER_ABANDONED) => Some(admitted?),
            },
        };
        self.spawn(initial.as_ref()).await?;
        let began = Instant::now();
        let mut said = false;
        loop {
            let answer = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                answer = self.ask(others, &tls) => answer,
            };
            let Err(error) = answer else { return Ok(()) };
            self.check_alive()?;
            if began.elapsed() > limits::MEMBERS_SILENCE && !std::mem::replace(&mut said, true) {
                warn!(error = format!("{error:#}"), "etcd waits for its other members");
            }
            sleep(limits::MEMBERSHIP_PAUSE).await;
        }
    }

    /// Asks the member of this machine, which answers once it has a vote, and promotes it if it is a learner.
    async fn ask(&self, others: &[String], tls: &Option<EtcdTls>) -> Result<()> {
        let local = async { Members::connect(&[self.local_url()], tls.clone()).await?.list().await };
        let error = match local.await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if !others.is_empty() {
            let mut members = Members::connect(others, tls.clone()).await?;
            let list = members.list().await?;
            let own = list.iter().find(|member| member.peer_urls.contains(&self.peer_url()));
            if let Some(own) = own.filter(|own| own.learner && !own.name.is_empty()) {
                members.promote(own.id).await?;
                info!("this machine's etcd has a vote");
            }
        }
        Err(error.into())
    }

    /// Has the cluster accept this member, and returns the members that it starts with. A learner that does not
    /// start for the time `abandoned` is removed.
    pub(super) async fn admit(
        &self,
        others: &[String],
        tls: &Option<EtcdTls>,
        abandoned: Duration,
    ) -> Result<Initial> {
        let began = Instant::now();
        let mut waiting: Option<(u64, Instant)> = None;
        loop {
            match self.try_to_enter(others, tls).await {
                Ok(initial) => return Ok(initial),
                Err(error) if began.elapsed() > limits::MEMBERSHIP_ADMISSION => {
                    return Err(error).with_context(|| {
                        format!("the etcd at {} does not accept this machine's member", others.join(", "))
                    });
                }
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), "etcd does not admit this member yet")
                }
            }
            let learner = self.unstarted(others, tls).await;
            match (waiting, learner) {
                (Some((id, since)), Some(learner)) if id == learner => {
                    if since.elapsed() >= abandoned {
                        warn!(id = format!("{id:x}"), "removing a member of etcd that never started");
                        let removed = async { Members::connect(others, tls.clone()).await?.remove(id).await };
                        if let Err(error) = removed.await {
                            warn!(
                                error = &error as &dyn std::error::Error,
                                "cannot remove the member of etcd"
                            );
                        }
                    }
                }
                (_, learner) => waiting = learner.map(|id| (id, Instant::now())),
            }
            sleep(limits::MEMBERSHIP_PAUSE).await;
        }
    }

    /// Returns the learner of another machine that has never started; `None` also if nobody answers.
    async fn unstarted(&self, others: &[String], tls: &Option<EtcdTls>) -> Option<u64> {
        let list = async { Members::connect(others, tls.clone()).await?.list().await }.await;
        unstarted(&list.ok()?, &self.peer_url())
    }

    async fn try_to_enter(&self, others: &[String], tls: &Option<EtcdTls>) -> Result<Initial> {
        let (mut members, url) = (Members::connect(others, tls.clone()).await?, self.peer_url());
        let mut list = members.list().await?;
        match step(&list, &url) {
            Step::Use => {}
            Step::Replace(id) => {
                warn!(
                    id = format!("{id:x}"),
                    "an earlier member of etcd at this address has no data any more"
                );
                members.remove(id).await?;
                (_, list) = members.add_learner(&url).await?;
            }
            Step::Add => (_, list) = members.add_learner(&url).await?,
        }
        Ok(initial(&list, &self.name, &url))
    }
}

/// Returns the URLs for clients of all members but the one with `own` URL for clients.
pub async fn other_clients(flags: &EtcdArgs, own: &str) -> Result<Vec<String>> {
    let list = Members::connect(&flags.etcd_servers, tls(flags)?).await?.list().await?;
    let urls = list.into_iter().filter(|member| !member.learner).flat_map(|member| member.client_urls);
    Ok(urls.filter(|url| url != own).collect())
}

/// Records the other members again and again, until shutdown.
pub async fn remember(data_dir: &Path, flags: &EtcdArgs, own: &str, stop: &CancellationToken) {
    loop {
        let known = async { control_plane::remember_others(data_dir, other_clients(flags, own).await?) };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            outcome = known => {
                if let Err(error) = outcome {
                    tracing::debug!(error = format!("{error:#}"), "cannot record the members of etcd");
                }
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = sleep(limits::MEMBERS_CHECK) => {}
        }
    }
}

/// Removes the member at `peer_url` from its cluster, by any member that answers. Refuses to remove the last one. The
/// cluster may refuse for a moment: all members that stay must have answered for some seconds.
pub async fn leave(flags: &EtcdArgs, peer_url: &str) -> Result<()> {
    let (tls, began) = (tls(flags)?, Instant::now());
    loop {
        match try_to_leave(flags, &tls, peer_url).await {
            Ok(true) => return Ok(()),
            Ok(false) => {
                bail!("this machine has the last member of etcd, and with it all objects: use `hawser down`")
            }
            Err(error) if began.elapsed() > limits::MEMBERSHIP_LEAVING => {
                return Err(error).context("cannot take this machine's etcd out of its cluster");
            }
            Err(error) => tracing::debug!(error = format!("{error:#}"), "not removed yet"),
        }
        sleep(limits::MEMBERSHIP_PAUSE).await;
    }
}

/// Removes a member; returns `false` if it is the last one.
async fn try_to_leave(flags: &EtcdArgs, tls: &Option<EtcdTls>, peer_url: &str) -> Result<bool> {
    let mut members = Members::connect(&flags.etcd_servers, tls.clone()).await?;
    let list = members.list().await?;
    let Some(own) = list.iter().find(|member| member.peer_urls.iter().any(|url| url == peer_url)) else {
        return Ok(true);
    };
    if !list.iter().any(|member| !member.learner && member.id != own.id) {
        return Ok(false);
    }
    members.remove(own.id).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str, peer: &str) -> Member {
        Member {
            id,
            name: name.to_owned(),
            peer_urls: vec![peer.to_owned()],
            client_urls: Vec::new(),
            learner: false,
        }
    }

    #[test]
    fn member_that_was_added_before_is_used_and_one_without_data_replaced() {
        let first = member(1, "a", "https://192.0.2.1:2380");
        let url = "https://192.0.2.2:2380";
        assert_eq!(step(std::slice::from_ref(&first), url), Step::Add);
        assert_eq!(step(&[first.clone(), member(2, "", url)], url), Step::Use);
        assert_eq!(step(&[first, member(2, "b", url)], url), Step::Replace(2));
    }

    #[test]
    fn only_another_learner_without_a_name_has_never_started() {
        let url = "https://192.0.2.2:2380";
        let learner = |id, name, url| Member { learner: true, ..member(id, name, url) };
        let voter = member(1, "", "https://192.0.2.1:2380");
        assert_eq!(unstarted(&[voter.clone(), learner(2, "", url)], url), None);
        assert_eq!(unstarted(&[voter.clone(), learner(3, "c", "https://192.0.2.3:2380")], url), None);
        assert_eq!(unstarted(&[voter, learner(3, "", "https://192.0.2.3:2380")], url), Some(3));
    }

    #[test]
    fn new_member_starts_with_all_others_and_itself() {
        let url = "https://192.0.2.3:2380";
        let members = [
            member(1, "a", "https://192.0.2.1:2380"),
            member(0xb2, "", "https://192.0.2.2:2380"),
            member(3, "", url),
        ];
        let Initial::Existing(pairs) = initial(&members, "c", url) else { panic!("not existing") };
        let text: Vec<_> = pairs.iter().map(|(name, url)| format!("{name}={url}")).collect();
        assert_eq!(
            text,
            ["a=https://192.0.2.1:2380", "b2=https://192.0.2.2:2380", "c=https://192.0.2.3:2380"]
        );
    }
}
