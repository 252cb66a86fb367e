//! Access of components to the API server: a `kube` client over TLS or in process, shared caches that are
//! updated by watches, and events.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod accounts;
mod around;
pub mod cache;
pub mod events;
pub mod fence;
mod latest;
pub mod limits;
mod media;
mod object;
mod outage;
mod pace;
pub mod readable;
mod refusal;
pub mod requests;
pub mod servers;
pub mod slim;
mod source;
pub mod transport;

pub use accounts::Accounts;
pub use apiserver_messages::Unread;
pub use cache::{Cache, Change, Index, IndexBy, Informers, ObjectKey, Projection, version_of};
pub use events::{About, IsBusy, Recorder, SeriesRecorder};
pub use fence::Fence;
pub use latest::Latest;
pub use object::{Labels, Metadata, Object};
pub use outage::is_expired;
pub use pace::paced;
pub use readable::Readable;
pub use refusal::{is_namespace_terminating, message};
pub use servers::Servers;
pub use transport::{
    ConnectError, HttpBody, authority, client, connect, connect_counted, connect_to, in_process, user_agent,
};
