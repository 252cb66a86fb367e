use std::error::Error;

/// Returns the text of `error` and of all its causes, separated by `: `.
///
/// A cause is skipped if the text before it already ends with it, since some libraries repeat the text of a
/// cause in their own.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::error_chain;

    #[derive(Debug, thiserror::Error)]
    enum Fault {
        #[error("{0}")]
        Plain(&'static str),
        #[error("{0}")]
        Caused(&'static str, #[source] Box<Fault>),
    }

    #[test]
    fn each_cause_appears_once() {
        let refused = Box::new(Fault::Plain("refused"));
        let connect = Box::new(Fault::Caused("connecting", refused));
        assert_eq!(error_chain(&Fault::Caused("reading", connect)), "reading: connecting: refused");
        let refused = Box::new(Fault::Plain("refused"));
        assert_eq!(error_chain(&Fault::Caused("connecting: refused", refused)), "connecting: refused");
    }
}
