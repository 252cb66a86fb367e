//! The account that the present task works for, for what is done deep below a request and has to be shared among accounts.

use std::sync::Arc;

use super::accounts::Account;

tokio::task_local! {
    static ACCOUNT: Arc<Account>;
}

/// Does work on behalf of an account.
pub async fn on_behalf_of<T>(account: Arc<Account>, work: impl Future<Output = T>) -> T {
    ACCOUNT.scope(account, work).await
}

/// Returns the account; `None` for what the server does by itself.
pub fn current() -> Option<Arc<Account>> {
    ACCOUNT.try_with(Arc::clone).ok()
}
