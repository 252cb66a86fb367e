//! Query parameters of a request.

/// The parameters of a query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Splits and decodes a query string; parts that cannot be decoded are left as they are.
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns `true` if a parameter is `1` or `true`.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "true" | "True"))
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let hex = || std::str::from_utf8(bytes.get(index + 1..index + 3)?).ok();
        match bytes[index] {
            b'+' => decoded.push(b' '),
            b'%' => match hex().and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                Some(byte) => {
                    decoded.push(byte);
                    index += 2;
                }
                None => decoded.push(b'%'),
            },
            byte => decoded.push(byte),
        }
        index += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded() {
        let query = Query::parse(Some("command=sh&command=-c&command=echo+a%20%26%2Bb%&tty=1&input=false"));
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a &+b%"]);
        assert!(query.is_set("tty") && !query.is_set("input") && !query.is_set("none"));
        assert_eq!(Query::parse(None), Query::default());
    }
}
