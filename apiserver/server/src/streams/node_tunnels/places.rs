//! The places for connections to pods in one tunnel: some for webhooks, some for requests through proxies, of which each
//! account may take a share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_schema::error::ApiError;

use crate::clients::accounts::{Account, Class};
use crate::clients::lanes;
use crate::errors;
use crate::limits;

/// The party that a connection to a pod is opened for.
#[derive(Clone, Copy)]
pub enum Applicant<'a> {
    /// The server itself, for a conversion. The number of those is limited for each kind and account.
    Webhook,
    /// A request through a proxy; `None` for one that this process makes.
    Request(Option<&'a Account>),
}

/// A refusal of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    #[error(
        "the client has as many connections to pods in the tunnel as it may have, {0}; close some, or try again later"
    )]
    Share(usize),
    #[error("the tunnel has as many connections to pods as it may have, {0}; try again later")]
    All(usize),
}

impl From<NoPlace> for ApiError {
    fn from(refused: NoPlace) -> Self {
        let (code, reason) = match refused {
            NoPlace::Share(_) => (429, "TooManyRequests"),
            NoPlace::All(_) => (503, "ServiceUnavailable"),
        };
        errors::retry_after(Self::new(code, reason, refused.to_string()), 1)
    }
}

/// The places of one tunnel.
#[derive(Default)]
pub struct Places(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    webhooks: usize,
    /// By all accounts together.
    requests: usize,
    accounts: HashMap<Key, usize>,
}

/// The class and the name of an account.
type Key = (Class, Box<str>);

/// A place in a tunnel, which is free again when this is dropped.
pub struct Place {
    places: Arc<Places>,
    /// `None` for a webhook.
    account: Option<Key>,
}

impl Places {
    /// Takes a place, if there is one.
    pub fn take(self: &Arc<Self>, applicant: Applicant<'_>) -> Result<Place, NoPlace> {
        let mut taken = self.lock();
        let account = match applicant {
            Applicant::Webhook => {
                if taken.webhooks >= limits::TUNNEL_WEBHOOK_STREAMS {
                    return Err(NoPlace::All(limits::TUNNEL_WEBHOOK_STREAMS));
                }
                taken.webhooks += 1;
                None
            }
            Applicant::Request(account) => {
                let (class, name) = account.map_or((Class::System, ""), Account::id);
                let (key, share) =
                    ((class, Box::from(name)), lanes::share(class, limits::TUNNEL_PROXY_STREAMS));
                if taken.accounts.get(&key).is_some_and(|own| *own >= share) {
                    return Err(NoPlace::Share(share));
                }
                if taken.requests >= limits::TUNNEL_PROXY_STREAMS {
                    return Err(NoPlace::All(limits::TUNNEL_PROXY_STREAMS));
                }
                taken.requests += 1;
                *taken.accounts.entry(Key::clone(&key)).or_default() += 1;
                Some(key)
            }
        };
        drop(taken);
        Ok(Place { places: Arc::clone(self), account })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics while it holds the lock, and each change is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        let Some(key) = &self.account else {
            taken.webhooks -= 1;
            return;
        };
        taken.requests -= 1;
        if let Some(own) = taken.accounts.get_mut(key) {
            *own -= 1;
            if *own == 0 {
                taken.accounts.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::accounts::Accounts;

    /// Takes as many places as there are; returns them and the refusal.
    fn all(places: &Arc<Places>, applicant: Applicant<'_>) -> (Vec<Place>, NoPlace) {
        let mut taken = Vec::new();
        loop {
            match places.take(applicant) {
                Ok(place) => taken.push(place),
                Err(refused) => return (taken, refused),
            }
        }
    }

    #[test]
    fn account_has_its_share_all_accounts_have_theirs_and_webhooks_have_places_of_their_own() {
        let (places, accounts) = (Arc::<Places>::default(), Accounts::new([4, 4]));
        let share = limits::TUNNEL_PROXY_STREAMS / limits::SHARE_OF_IDENTITY;
        let tenants: Vec<_> =
            (0..5).map(|number| accounts.account(Class::Tenants, &number.to_string())).collect();
        let mut held = Vec::new();
        for tenant in &tenants[..limits::SHARE_OF_IDENTITY] {
            let (taken, refused) = all(&places, Applicant::Request(Some(tenant)));
            assert_eq!((taken.len(), refused), (share, NoPlace::Share(share)));
            held.push(taken);
        }
        let (taken, refused) = all(&places, Applicant::Request(Some(&tenants[4])));
        assert_eq!((taken.len(), refused), (0, NoPlace::All(limits::TUNNEL_PROXY_STREAMS)));
        assert_eq!(ApiError::from(refused).code, 503);
        let (webhooks, refused) = all(&places, Applicant::Webhook);
        assert_eq!(webhooks.len(), limits::CONVERSIONS, "each conversion that may be under way has one");
        assert_eq!(refused, NoPlace::All(limits::TUNNEL_WEBHOOK_STREAMS));
        held.pop();
        assert_eq!(all(&places, Applicant::Request(Some(&tenants[4]))).0.len(), share);
        drop((held, webhooks));
        let taken = places.lock();
        assert!(taken.accounts.is_empty() && taken.requests == 0 && taken.webhooks == 0);
    }

    #[test]
    fn refusal_of_a_share_tells_the_client_to_come_back() {
        let refusal = ApiError::from(NoPlace::Share(32));
        assert_eq!((refusal.code, &refusal.details.unwrap()["retryAfterSeconds"]), (429, &1.into()));
        assert!(refusal.message.contains("as it may have, 32"), "{}", refusal.message);
    }
}
