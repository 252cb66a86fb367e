//! `hawser token`: the tokens with which machines join, as Secrets in `kube-system`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::public_key_hashes;
use apiserver_client::connect;
use apiserver_meta::ambient::Ambient;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};

use crate::cluster_info::{self, Discovered};
use crate::handover::Offer;
use crate::join_args::{Administrator, TokenAction, TokenCommand, TokenCreate, TokenDelete};
use crate::limits;

/// Life of a token by default, and of one that lets a control node join, as with kubeadm.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
const CONTROL_PLANE_TTL: Duration = Duration::from_secs(2 * 60 * 60);
const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Uses of a token, and the field that each is stored in.
const USAGES: [(&str, &str); 2] =
    [("signing", "usage-bootstrap-signing"), ("authentication", "usage-bootstrap-authentication")];
const GROUP_PREFIX: &str = "system:bootstrappers:";

/// A bootstrap token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub secret: String,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id, self.secret)
    }
}

fn is_plain(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

impl Token {
    /// Parses `abcdef.0123456789abcdef`.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('.') {
            Some((id, secret)) if is_plain(id, 6) && is_plain(secret, 16) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            // The text may be a secret, and errors are logged.
            _ => bail!(
                "the token does not have the form abcdef.0123456789abcdef: lowercase letters and digits, 6 before \
                 the dot and 16 after it"
            ),
        }
    }

    /// Returns the token of the command line: the text itself, or the content of a file, `-` being standard input.
    pub fn given(text: Option<&str>, file: Option<&Path>) -> Result<Option<Self>> {
        let Some(file) = file else { return text.map(Self::parse).transpose() };
        let text = read_file("--token-file", file)?;
        Self::parse(text.trim()).with_context(|| format!("--token-file {}", file.display())).map(Some)
    }

    fn random(ambient: &Ambient) -> Self {
        let text = |length: usize| -> String {
            (0..length).map(|_| char::from(ALPHABET[(ambient.random.next_u64() % 36) as usize])).collect()
        };
        Self { id: text(6), secret: text(16) }
    }
}

/// Returns the content of the short file that a flag names, `-` being standard input.
pub fn read_file(flag: &str, file: &Path) -> Result<String> {
    let read = |reader: &mut dyn Read| {
        let mut text = String::new();
        Read::take(reader, limits::TOKEN_FILE).read_to_string(&mut text).map(|_| text)
    };
    if file == Path::new("-") {
        return read(&mut std::io::stdin().lock())
            .with_context(|| format!("cannot read {flag} from standard input"));
    }
    let opened = File::open(file).and_then(|mut file| read(&mut file));
    opened.with_context(|| format!("cannot read {flag} {}", file.display()))
}

/// `hawser token …`.
pub async fn run(command: TokenCommand) -> Result<()> {
    match command.action {
        TokenAction::Create(args) => create(args).await,
        TokenAction::List(administrator) => list(&administrator).await,
        TokenAction::Delete(args) => delete(args).await,
    }
}

async fn client(administrator: &Administrator) -> Result<Client> {
    let Administrator { data_dir, kubeconfig } = administrator;
    let kubeconfig: PathBuf = match (kubeconfig, data_dir) {
        (Some(file), _) => file.clone(),
        (None, Some(dir)) => dir.join("kubeconfig.yaml"),
        (None, None) => bail!("give --data-dir or --kubeconfig"),
    };
    if !kubeconfig.is_file() {
        bail!("{} is missing: give the --data-dir of `hawser up`, or a --kubeconfig", kubeconfig.display());
    }
    Ok(connect(&kubeconfig, "hawser").await?)
}

async fn create(args: TokenCreate) -> Result<()> {
    let TokenCreate {
        token,
        ttl,
        control_plane,
        description,
        usages,
        groups,
        print_join_command,
        administrator,
    } = args;
    let ttl = ttl.unwrap_or(if control_plane { CONTROL_PLANE_TTL } else { TTL });
    // Before anything is made.
    let offer = control_plane.then(|| Offer::new(administrator.data_dir.as_deref(), ttl)).transpose()?;
    let ambient = Ambient::system();
    let token = token.as_deref().map_or_else(|| Ok(Token::random(&ambient)), Token::parse)?;
    let secret = secret(&token, ambient.now(), ttl, &description, &usages, &groups)?;
    let client = client(&administrator).await?;
    // Before there is a token that nobody was told.
    let line = match &offer {
        Some(offer) => format!("{} {}", join_command(&client, &token).await?, offer.join_flags()),
        None if print_join_command => join_command(&client, &token).await?,
        None => token.to_string(),
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let made = match api.create(&PostParams::default(), &secret).await {
        Ok(made) => made,
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            bail!("there is a token {} already: delete it with `hawser token delete {0}`", token.id)
        }
        Err(error) => return Err(error).with_context(|| format!("cannot create token {}", token.id)),
    };
    if let Some(offer) = offer
        && let Err(error) = offer.store(&client, &token.id, &made).await
    {
        // Without its keys the token is of no use, and what was stored goes with it.
        let _ = api.delete(&format!("{PREFIX}{}", token.id), &DeleteParams::default()).await;
        return Err(error);
    }
    println!("{line}");
    Ok(())
}

async fn join_command(client: &Client, token: &Token) -> Result<String> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), cluster_info::NAMESPACE);
    let map =
        api.get(cluster_info::NAME).await.context("cannot read the ConfigMap kube-public/cluster-info")?;
    let text = map.data.as_ref().and_then(|data| data.get(cluster_info::KUBECONFIG));
    let found = Discovered::read(text.context("kube-public/cluster-info has no kubeconfig")?)?;
    let server = found.server.trim_start_matches("https://");
    let hashes: String = public_key_hashes(&found.authorities)
        .iter()
        .map(|hash| format!(" --discovery-token-ca-cert-hash {hash}"))
        .collect();
    Ok(format!("hawser join {server} --token {token}{hashes}"))
}

/// Returns the Secret of a token.
fn secret(
    token: &Token,
    now: Timestamp,
    ttl: Duration,
    description: &str,
    usages: &[String],
    groups: &[String],
) -> Result<Secret> {
    let mut fields = BTreeMap::from([
        ("token-id".to_owned(), token.id.clone()),
        ("token-secret".to_owned(), token.secret.clone()),
    ]);
    if !ttl.is_zero() {
        let end = now.checked_add(ttl).context("--ttl is too long")?;
        fields.insert("expiration".to_owned(), apiserver_meta::time::rfc3339(end));
    }
    if !description.is_empty() {
        fields.insert("description".to_owned(), description.to_owned());
    }
    for usage in usages {
        let field = USAGES.iter().find(|(name, _)| name == usage);
        let (_, field) =
            field.with_context(|| format!("--usages {usage}: give signing, authentication, or both"))?;
        fields.insert((*field).to_owned(), "true".to_owned());
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).filter(|group| !group.is_empty()).collect();
    if let Some(group) = groups.iter().find(|group| !is_group(group)) {
        bail!(
            "--groups {group}: give {GROUP_PREFIX}NAME, with lowercase letters, digits, colons and hyphens"
        );
    }
    if !groups.is_empty() {
        fields.insert("auth-extra-groups".to_owned(), groups.join(","));
    }
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{}", token.id)),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(fields.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect()),
        ..Secret::default()
    })
}

fn is_group(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.strip_prefix(GROUP_PREFIX).is_some_and(|rest| {
        (1..=256).contains(&rest.len())
            && rest.bytes().all(|byte| plain(byte) || byte == b':' || byte == b'-')
            && rest.bytes().last().is_some_and(plain)
    })
}

async fn list(administrator: &Administrator) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(client(administrator).await?, NAMESPACE);
    let list = api.list(&ListParams::default().fields(&format!("type={TYPE}"))).await;
    let now = Ambient::system().now();
    let rows: Vec<[String; 6]> =
        list.context("cannot list the tokens")?.items.iter().filter_map(|secret| row(secret, now)).collect();
    print!("{}", table(&rows));
    Ok(())
}

/// Returns the columns of a token; `None` if the Secret is not one of a token.
fn row(secret: &Secret, now: Timestamp) -> Option<[String; 6]> {
    let data = secret.data.as_ref()?;
    let field = |name: &str| data.get(name).map(|value| String::from_utf8_lossy(&value.0).into_owned());
    let token = Token { id: field("token-id")?, secret: field("token-secret")? };
    let (ttl, expires) = match field("expiration") {
        None => ("<forever>".to_owned(), "<never>".to_owned()),
        Some(text) => {
            let left = text.parse::<Timestamp>().ok().map_or(0, |end| end.as_second() - now.as_second());
            let ttl = if left > 0 { apiserver_meta::time::human(left) } else { "<invalid>".to_owned() };
            (ttl, text)
        }
    };
    let usages: Vec<&str> = USAGES
        .iter()
        .filter(|(_, key)| field(key).as_deref() == Some("true"))
        .map(|(name, _)| *name)
        .collect();
    let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
    Some([
        token.to_string(),
        ttl,
        expires,
        or_none(usages.join(",")),
        or_none(field("description").unwrap_or_default()),
        or_none(field("auth-extra-groups").unwrap_or_default()),
    ])
}

fn table(rows: &[[String; 6]]) -> String {
    let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned);
    let all: Vec<&[String; 6]> = std::iter::once(&head).chain(rows).collect();
    let mut text = String::new();
    for row in &all {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = all.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
            format!("{cell:width$}")
        });
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

async fn delete(args: TokenDelete) -> Result<()> {
    let TokenDelete { tokens, administrator } = args;
    let ids = tokens.iter().map(|text| {
        let id = text.split_once('.').map_or(text.as_str(), |(id, _)| id);
        if !is_plain(id, 6) {
            bail!("{id:?} is not the beginning of a token: give 6 lowercase letters and digits");
        }
        Ok(id.to_owned())
    });
    let ids = ids.collect::<Result<Vec<_>>>()?;
    let api: Api<Secret> = Api::namespaced(client(&administrator).await?, NAMESPACE);
    for id in ids {
        match api.delete(&format!("{PREFIX}{id}"), &DeleteParams::default()).await {
            Ok(_) => println!("token {id} deleted"),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                bail!("there is no token {id}: `hawser token list` shows those that there are")
            }
            Err(error) => return Err(error).with_context(|| format!("cannot delete token {id}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn token() -> Token {
        Token::parse("abcdef.0123456789abcdef").unwrap()
    }

    fn make(ttl: u64, usages: &[&str], groups: &[&str]) -> Result<Secret> {
        let list = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        secret(&token(), now(), Duration::from_secs(ttl), "for rack 7", &list(usages), &list(groups))
    }

    #[test]
    fn tokens_have_kubeadms_form() {
        assert_eq!(token().to_string(), "abcdef.0123456789abcdef");
        for text in
            ["", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef-0123456789abcdef"]
        {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        let (one, two) = (Token::random(&Ambient::system()), Token::random(&Ambient::system()));
        assert!(Token::parse(&one.to_string()).is_ok() && one != two);
    }

    #[test]
    fn a_token_may_be_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "abcdef.0123456789abcdef\n").unwrap();
        assert!(Token::given(None, Some(&file)).unwrap() == Some(token()));
        assert!(Token::given(Some("abcdef.0123456789abcdef"), None).unwrap() == Some(token()));
        assert!(Token::given(None, None).unwrap().is_none());
        std::fs::write(&file, "secret0123456789").unwrap();
        let error = format!("{:#}", Token::given(None, Some(&file)).err().unwrap());
        assert!(error.contains("--token-file") && !error.contains("secret0123456789"), "{error}");
        std::fs::remove_file(&file).unwrap();
        let error = format!("{:#}", Token::given(None, Some(&file)).err().unwrap());
        assert!(error.contains("cannot read --token-file"), "{error}");
    }

    #[test]
    fn secrets_are_those_of_kubeadm() {
        let made = make(86_400, &["signing", "authentication"], &["system:bootstrappers:worker"]).unwrap();
        assert_eq!(made.metadata.name.as_deref(), Some("bootstrap-token-abcdef"));
        let data = made.data.unwrap();
        let text: Vec<(&str, &str)> =
            data.iter().map(|(key, value)| (key.as_str(), std::str::from_utf8(&value.0).unwrap())).collect();
        assert_eq!(
            text,
            [
                ("auth-extra-groups", "system:bootstrappers:worker"),
                ("description", "for rack 7"),
                ("expiration", "2026-06-02T12:00:00Z"),
                ("token-id", "abcdef"),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-authentication", "true"),
                ("usage-bootstrap-signing", "true"),
            ]
        );
        assert!(!make(0, &["signing"], &[]).unwrap().data.unwrap().contains_key("expiration"));
        assert!(make(1, &["flying"], &[]).unwrap_err().to_string().contains("--usages flying"));
        assert!(
            make(1, &[], &["system:masters"]).unwrap_err().to_string().contains("--groups system:masters")
        );
    }

    #[test]
    fn the_list_shows_what_a_token_is_for() {
        let rows = [
            row(&make(3600, &["signing"], &["system:bootstrappers:a"]).unwrap(), now()).unwrap(),
            row(&make(0, &[], &[]).unwrap(), now()).unwrap(),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("TOKEN                     TTL"), "{text}");
        for part in
            ["abcdef.0123456789abcdef", "60m", "2026-06-01T13:00:00Z", "signing", "system:bootstrappers:a"]
        {
            assert!(lines[1].contains(part), "{part}: {text}");
        }
        assert!(
            lines[2].contains("<forever>") && lines[2].contains("<never>") && lines[2].ends_with("<none>")
        );
        let later = now() + Duration::from_secs(7200);
        assert_eq!(row(&make(3600, &[], &[]).unwrap(), later).unwrap()[1], "<invalid>");
    }
}
