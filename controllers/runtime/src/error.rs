//! The error of controllers: what was attempted, on which object, and why it failed.

use apiserver_client::{is_namespace_terminating, message};

/// Result of an attempt.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason for which a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API refused a request or could not be reached.
    #[error("cannot {attempt}")]
    Api {
        /// Operation and object, such as `create pod of ns/name`.
        attempt: String,
        #[source]
        cause: Box<kube::Error>,
    },
    /// An object cannot be used as it is.
    #[error("{object}: {problem}")]
    Unusable {
        /// Kind and name.
        object: String,
        problem: String,
    },
    /// The leader's lease could not be renewed in time; another process may be leading by now.
    #[error("lost the lease {lease}")]
    LeaseLost {
        /// `namespace/name` of the Lease.
        lease: String,
    },
    /// Several attempts failed. The first error is the source.
    #[error("{count} of {of} requests failed")]
    Several {
        count: usize,
        of: usize,
        #[source]
        first: Box<Error>,
    },
}

impl Error {
    /// Returns `true` if another writer was faster (409 Conflict). This is ordinary: the next attempt sees its
    /// write.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if is_conflict(cause))
    }

    /// Returns `true` if the object does not exist (404).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if is_not_found(cause))
    }

    /// Returns `true` if the object already exists (409 AlreadyExists).
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if is_already_exists(cause))
    }

    /// Returns `true` if the namespace is being deleted, so that nothing can be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        matches!(self, Self::Api { cause, .. } if is_namespace_terminating(cause))
    }

    /// Returns the status code of the API's refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { cause, .. } => match cause.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Several { first, .. } => first.code(),
            Self::Unusable { .. } | Self::LeaseLost { .. } => None,
        }
    }

    /// Returns `true` if the API has refused a request, so that nothing was written: it did not fail, and its answer was
    /// not lost. A conflict is no refusal: a client repeats what was answered with 429, 503 or 504, and the conflict may be
    /// one with its own first attempt.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Several { .. } => false,
            _ => {
                self.code().is_some_and(|code| (400..500).contains(&code) && !matches!(code, 408 | 409 | 429))
            }
        }
    }

    /// Returns the message of the API alone, as events show it.
    pub fn api_message(&self) -> String {
        match self {
            Self::Api { cause, .. } => message(cause),
            other => other.to_string(),
        }
    }

    /// Combines the failures among `results` into one error; `Ok` if there are none.
    pub fn collect(results: Vec<Result<()>>) -> Result<()> {
        let of = results.len();
        let mut failed: Vec<Error> = results.into_iter().filter_map(std::result::Result::err).collect();
        match failed.len() {
            0 => Ok(()),
            1 => Err(failed.remove(0)),
            count => Err(Self::Several { count, of, first: Box::new(failed.remove(0)) }),
        }
    }
}

/// Returns `true` if the error is a 404.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Returns `true` if the error is a 409 because of a resource version, uid or another precondition.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// Returns `true` if the error is a 409 because of the name.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Returns `true` if the error is a 410, or a namespace or kind that no longer exists.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410 || status.code == 404)
}

/// Adds the attempted operation to a failed request.
pub trait Attempt<T> {
    /// Adds the operation. `what` completes the phrase "cannot …".
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Attempt<T> for kube::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error::Api { attempt: what(), cause: Box::new(cause) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn refused(code: u16, reason: &str) -> Error {
        let status = Status::failure("no", reason).with_code(code);
        Err::<(), _>(kube::Error::Api(status.boxed())).attempt(|| "try".to_owned()).unwrap_err()
    }

    #[test]
    fn conflict_and_already_exists_are_distinguished() {
        assert!(refused(409, "Conflict").is_conflict());
        assert!(!refused(409, "AlreadyExists").is_conflict());
        assert!(refused(409, "AlreadyExists").is_already_exists());
        assert!(refused(404, "NotFound").is_not_found());
        let refusals =
            [(422, "Invalid"), (403, "Forbidden")].map(|(code, reason)| refused(code, reason).is_refusal());
        assert_eq!(refusals, [true, true]);
        let others = [(500, "InternalError"), (409, "Conflict"), (429, "TooManyRequests")];
        assert_eq!(others.map(|(code, reason)| refused(code, reason).is_refusal()), [false; 3]);
    }

    /// `Error creating: pods "web-" is forbidden: …`, as in Kubernetes events.
    #[test]
    fn messages_for_events_have_the_words_of_the_api() {
        let text = "pods \"web-\" is forbidden: exceeded quota";
        let status = Status::failure(text, "Forbidden").with_code(403);
        let error = Err::<(), _>(kube::Error::Api(status.boxed())).attempt(|| "create a pod".to_owned());
        assert_eq!(error.unwrap_err().api_message(), text);
    }

    #[test]
    fn several_failures_become_one_that_names_the_first() {
        assert!(Error::collect(vec![Ok(()), Ok(())]).is_ok());
        let error =
            Error::collect(vec![Err(refused(404, "NotFound")), Ok(()), Err(refused(409, "Conflict"))]);
        let Err(Error::Several { count: 2, of: 3, first }) = error else { panic!("{error:?}") };
        assert!(first.is_not_found());
    }
}
