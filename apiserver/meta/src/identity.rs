//! Identity of the user that makes a request.

/// An authenticated user. The TLS listener derives it from a certificate or a token; the
/// in-process transport puts it into the request's extensions. Nothing in a request's headers
/// can set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the user; `system:anonymous` for unauthenticated requests.
    pub user: String,
    /// Stable id; may be empty.
    pub uid: String,
    /// Groups, including `system:authenticated` or `system:unauthenticated`.
    pub groups: Vec<String>,
    /// Further claims, such as `authentication.kubernetes.io/pod-name`.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Identity {
    /// Returns an authenticated user with the given groups and `system:authenticated`.
    pub fn authenticated(user: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        groups.push("system:authenticated".to_owned());
        Self { user: user.to_owned(), uid: String::new(), groups, extra: Vec::new() }
    }

    /// Returns the user of a ServiceAccount.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        Self::authenticated(
            &user,
            &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")],
        )
    }

    /// Returns the user of unauthenticated requests.
    pub fn anonymous() -> Self {
        Self {
            user: "system:anonymous".to_owned(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".to_owned()],
            extra: Vec::new(),
        }
    }

    /// Returns `true` if the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}
