//! `against`: compares the answers of a `hawser apiserver` with those of a kube-apiserver. Run through
//! `cargo xtask test --against`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command that talks to a person")]

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use futures::StreamExt as _;
use jiff::Timestamp;
use tests_against::compare::{Answer, compare, normalize};
use tests_against::kinds::{Kind, discover, versions};
use tests_against::place::Place;
use tests_against::plan::{Base, Case, Plan, RESOURCE_VERSION, UID};
use tests_against::report::{Figures, Outcome, json, text};
use tests_against::schema::Schemas;
use tests_against::server::{Hawser, Sent, Server};

#[derive(Parser)]
struct Args {
    /// URL of the kube-apiserver, or the path of its kubeconfig
    against: String,
    /// Kubeconfig with an administrator's credentials for it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The `hawser` program
    #[arg(long, value_name = "FILE")]
    hawser: PathBuf,
    /// Draw the requests from this number again
    #[arg(long)]
    seed: Option<u64>,
    /// Number of requests to send
    #[arg(long, default_value_t = 7000)]
    requests: usize,
    /// Only this request of the run
    #[arg(long)]
    case: Option<usize>,
    /// Write every answer that differs to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of groups of differences to print
    #[arg(long, default_value_t = 60)]
    groups: usize,
}

/// Requests at one time.
const AT_ONCE: usize = 6;

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("against: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the comparison; true if it reaches the bars.
async fn run(args: &Args) -> Result<bool> {
    let theirs = connect(args).await?;
    let version = theirs.get("/version").await?;
    let served = versions(&theirs).await?;
    let hawser = start(args, &theirs, &served).await?;
    let ours = Server::connect("hawser", &hawser.kubeconfig(), None).await?;
    let seed = args.seed.unwrap_or_else(drawn);
    println!(
        "hawser beside kube-apiserver {}, the same requests again with --seed {seed}",
        version["gitVersion"].as_str().unwrap_or("of an unknown version")
    );
    let kinds = kinds(&ours, &theirs, &served).await?;
    let outcomes = tokio::select! {
        outcomes = outcomes(args, seed, [ours.clone(), theirs.clone()], kinds) => outcomes?,
    };
    hawser.stop()?;
    if let Some(path) = &args.json {
        std::fs::write(path, json(seed, &outcomes).to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", text(&outcomes, args.groups));
    Ok(Figures::of(&outcomes).pass())
}

/// A server of the user's: a URL with the credentials of a kubeconfig, or a kubeconfig alone.
async fn connect(args: &Args) -> Result<Server> {
    let is_url = args.against.contains("://");
    let path = match &args.kubeconfig {
        Some(path) => path.clone(),
        None if !is_url => PathBuf::from(&args.against),
        None => default_kubeconfig().context("no credentials: give --kubeconfig FILE, or set KUBECONFIG")?,
    };
    Server::connect("kube-apiserver", &path, is_url.then_some(args.against.as_str())).await
}

fn default_kubeconfig() -> Option<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").map(PathBuf::from);
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".kube/config"));
    named.or_else(home).filter(|path| path.exists())
}

async fn start(args: &Args, theirs: &Server, served: &[String]) -> Result<Hawser> {
    let ranges = theirs.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await?;
    let ranges: Vec<&str> =
        ranges["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(|range| range.as_str()).collect();
    let known = apiserver_kinds::builtin::registry();
    let versions: Vec<String> = served
        .iter()
        .filter(|version| known.iter().any(|resource| resource.api_version() == **version))
        .cloned()
        .collect();
    Hawser::start(
        &args.hawser,
        &versions,
        Some(&ranges.join(",")).filter(|text| !text.is_empty()).map(String::as_str),
    )
}

/// The kinds that both servers have. Says which of the built-in ones only one has.
async fn kinds(ours: &Server, theirs: &Server, served: &[String]) -> Result<Vec<Kind>> {
    let have = versions(ours).await?;
    let both: Vec<String> = served.iter().filter(|version| have.contains(version)).cloned().collect();
    let (here, there) = (discover(ours, &both).await?, discover(theirs, &both).await?);
    let missing = |from: &[Kind], of: &[Kind]| {
        of.iter()
            .filter(|kind| !from.contains(kind))
            .map(|kind| format!("{} {}", kind.api_version, kind.kind))
            .collect::<Vec<_>>()
    };
    for (name, kinds) in [("hawser", missing(&here, &there)), ("kube-apiserver", missing(&there, &here))] {
        if !kinds.is_empty() {
            println!("not compared, since {name} does not serve them so: {}", kinds.join(", "));
        }
    }
    let kinds: Vec<Kind> =
        there.into_iter().filter(|kind| here.contains(kind) && !kind.manifests.is_empty()).collect();
    println!("{} kinds of {} groups and versions", kinds.len(), both.len());
    Ok(kinds)
}

/// Sends every request to both servers, in a namespace that is removed again, also after a failure or Ctrl-C.
async fn outcomes(args: &Args, seed: u64, servers: [Server; 2], kinds: Vec<Kind>) -> Result<Vec<Outcome>> {
    let namespace = format!("against-{:x}", seed & 0xffff_ffff);
    let mut place = Place::make(servers.clone(), &namespace).await?;
    let asked = tokio::select! {
        asked = ask(args, seed, &servers, kinds, &mut place) => asked,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    let removed = place.remove().await.context("cannot remove what the run created");
    let outcomes = asked?;
    removed?;
    Ok(outcomes)
}

async fn ask(
    args: &Args,
    seed: u64,
    servers: &[Server; 2],
    kinds: Vec<Kind>,
    place: &mut Place,
) -> Result<Vec<Outcome>> {
    let schemas = Schemas::published()?;
    let mut told = Vec::new();
    let mut all: Vec<(Kind, Vec<Base>)> = Vec::new();
    for kind in kinds {
        let bases = place.create(&kind, &mut told).await?;
        all.push((kind, bases));
    }
    for line in &told {
        println!("not created on both servers: {line}");
    }
    let identities = identities(servers, &all).await?;
    let plan = Plan { seed, schemas: &schemas, namespace: &place.namespace, kinds: &all };
    let numbers = args.case.map_or(0..args.requests, |case| case..case + 1);
    let outcomes = futures::stream::iter(numbers)
        .map(|number| outcome(number, plan.case(number), servers, &identities))
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    outcomes.into_iter().collect()
}

/// By path: the uid and version that each server gave to an object.
type Identities = BTreeMap<String, [(String, String); 2]>;

async fn identities(servers: &[Server; 2], all: &[(Kind, Vec<Base>)]) -> Result<Identities> {
    let mut identities = Identities::new();
    for base in all.iter().flat_map(|(_, bases)| bases) {
        let mut both = <[(String, String); 2]>::default();
        for (server, place) in servers.iter().zip(&mut both) {
            let object = server.get(&base.path).await?;
            let word = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            *place = (word("uid"), word("resourceVersion"));
        }
        identities.insert(base.path.clone(), both);
    }
    Ok(identities)
}

/// Sends one request to both servers.
async fn outcome(
    number: usize,
    case: Case,
    servers: &[Server; 2],
    identities: &Identities,
) -> Result<Outcome> {
    let both = case.base.as_ref().and_then(|path| identities.get(path)).cloned().unwrap_or_default();
    let ask = |index: usize| {
        let (uid, version) = both[index].clone();
        let body = case.body.replace(RESOURCE_VERSION, &version).replace(UID, &uid);
        let sent =
            Sent { method: case.method.clone(), path: &case.path, content_type: case.content_type, body };
        async move {
            let answer = servers[index].send(&sent).await?;
            let known = if uid.is_empty() { Vec::new() } else { vec![(uid, "<uid>")] };
            anyhow::Ok((normalize(&answer, &sent.body, &known, Timestamp::now()), answer.status))
        }
    };
    let (ours, theirs) = tokio::join!(ask(0), ask(1));
    let unanswered = |error: anyhow::Error| Answer { body: format!("{error:#}").into(), ..Answer::default() };
    let (ours, theirs) = (
        ours.map_or_else(unanswered, |(answer, _)| answer),
        theirs.map_or_else(unanswered, |(answer, _)| answer),
    );
    if ours.status == 0 && theirs.status == 0 {
        bail!("request {number}: neither server answers: {}; {}", ours.body, theirs.body);
    }
    let verdict = compare(&ours, &theirs);
    Ok(Outcome { number, case, ours, theirs, verdict })
}

/// Another seed each time: what a hasher of the standard library starts with is random.
fn drawn() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 24
}
