//! `kill -9` of a real process with a real directory: what it acknowledged on its standard output exists
//! afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use apiserver_store::Store;
use apiserver_store::disk::RealDisk;
use apiserver_store::embedded::{Embedded, Options};

use crate::durability::support::put;

/// Environment variable that passes the directory to the child.
const DIRECTORY: &str = "HAWSER_STORE_TEST_DIRECTORY";
const ROUNDS: usize = 5;
const ACKNOWLEDGED: usize = 400;

/// Returns sizes so small that segments and checkpoints change frequently.
fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        checkpoint_bytes: 128 << 10,
        history_revisions: 500,
        ..Options::default()
    }
}

async fn open(directory: &Path) -> Embedded {
    Embedded::open(Arc::new(RealDisk::new(directory).unwrap()), options()).await.unwrap()
}

#[tokio::test]
async fn acknowledged_writes_survive_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    let mut newest = 0;
    for round in 0..ROUNDS {
        let mut child = spawn(directory.path());
        for (key, value, revision) in acknowledgements(&mut child) {
            acknowledged.insert(key, (value, revision));
            assert!(revision > newest || round == 0, "revision {revision} in round {round} after {newest}");
        }
        let store = open(directory.path()).await;
        newest = store.revision().await.unwrap();
        for (key, (value, revision)) in &acknowledged {
            let kv = store.get(key).await.unwrap().kv.unwrap_or_else(|| panic!("{key} is lost"));
            // The process may have written once more without reporting it.
            assert!(kv.mod_revision >= *revision, "{key} went back to {}", kv.mod_revision);
            if kv.mod_revision == *revision {
                assert_eq!(kv.value.as_ref(), value.as_bytes());
            }
            assert!(kv.mod_revision <= newest);
        }
        store.close().await.unwrap();
    }
    assert!(acknowledged.len() > 10);
}

/// The child process, which writes forever. Without the variable it does nothing.
#[test]
#[ignore = "the child of acknowledged_writes_survive_kill_9"]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&directory)).await;
        let writers: Vec<_> =
            (0..16).map(|writer| tokio::spawn(write_for_ever(store.clone(), writer))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

async fn write_for_ever(store: Embedded, writer: u32) {
    for number in 0_u64.. {
        let key = format!("/{writer}/{}", number % 7);
        let value = format!("{writer}.{number}.{}", "v".repeat((number % 900) as usize));
        let revision = put(&store, &key, value.clone()).await.unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "acknowledged {key} {value} {revision}").unwrap();
        out.flush().unwrap();
    }
}

fn spawn(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::kill::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Kills the child after a while and returns everything that it acknowledged.
fn acknowledgements(child: &mut Child) -> Vec<(String, String, i64)> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let (mut found, mut line) = (Vec::new(), String::new());
    while output.read_line(&mut line).unwrap() > 0 {
        let words: Vec<&str> = line.split(' ').collect();
        // An incomplete last line does not count.
        if let Some(at) = words.iter().position(|word| *word == "acknowledged")
            && line.ends_with('\n')
        {
            let revision = words[at + 3].trim().parse().unwrap();
            found.push((words[at + 1].to_owned(), words[at + 2].to_owned(), revision));
        }
        line.clear();
        if found.len() == ACKNOWLEDGED {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(found.len() >= ACKNOWLEDGED, "the child ended by itself after {}", found.len());
    found
}
