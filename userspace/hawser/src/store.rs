//! `hawser store`: a snapshot of the embedded store, restoring one, and checking what is on disk.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use apiserver_server::store_check;
use apiserver_store::disk::RealDisk;
use apiserver_store::embedded::{
    Report, Snapshot, is_served, restore_directory, restore_running, snapshot_directory, verify_directory,
    verify_snapshot,
};
use apiserver_store::{Range, Store};
use serde_json::json;

use crate::apiserver::{connect_etcd, store_directory};
use crate::args::{StoreAction, StoreCommand, StoreRestore, StoreSnapshot, StoreVerify};
use crate::data_dir::DataDir;
use crate::limits;

/// The exit code of `verify` if something is damaged; 1 means that something could not be checked.
const DAMAGED: u8 = 3;

/// Runs one of the subcommands.
pub async fn run(command: StoreCommand) -> Result<ExitCode> {
    match command.action {
        StoreAction::Snapshot(args) => snapshot(args).await.map(|()| ExitCode::SUCCESS),
        StoreAction::Restore(args) => restore(args).await.map(|()| ExitCode::SUCCESS),
        StoreAction::Verify(args) => verify(args).await,
    }
}

async fn snapshot(args: StoreSnapshot) -> Result<()> {
    let StoreSnapshot { data_dir, to } = args;
    let taken = snapshot_directory(&store_directory(&data_dir), &to).await?;
    println!("{}: revision {}, {} keys, {} bytes", to.display(), taken.revision, taken.keys, taken.bytes);
    Ok(())
}

/// Restores into the running server if there is one, otherwise into the directory.
async fn restore(args: StoreRestore) -> Result<()> {
    let StoreRestore { from, data_dir, bump_revision } = args;
    let from = from.canonicalize().with_context(|| format!("cannot find {}", from.display()))?;
    let directory = store_directory(&data_dir);
    if bump_revision.is_some() && is_served(&directory).await? {
        bail!(
            "{} is served, and the revisions of a running server go on by themselves: leave --bump-revision out, or stop \
             the server first",
            data_dir.display()
        );
    }
    if let Some(restored) = restore_running(&directory, &from).await? {
        println!(
            "the running server is at revision {}: {} keys set, {} removed; watches saw it as changes",
            restored.revision, restored.set, restored.removed
        );
        return Ok(());
    }
    let data = DataDir::open(&data_dir)?;
    let directory = store_directory(data.path());
    let work = move || -> Result<_> {
        let snapshot = Snapshot::read(&from)?;
        let disk =
            RealDisk::new(&directory).with_context(|| format!("cannot use {}", directory.display()))?;
        Ok(restore_directory(&(Arc::new(disk) as _), snapshot, bump_revision)?)
    };
    let outcome = tokio::task::spawn_blocking(work).await.context("the restore was cut short");
    let restored = match outcome.and_then(|outcome| outcome) {
        Ok(restored) => restored,
        Err(error) => {
            data.discard_if_fresh();
            return Err(error);
        }
    };
    println!(
        "{} is at revision {}, with {} keys; watches from before begin anew",
        data_dir.display(),
        restored.revision,
        restored.set
    );
    Ok(())
}

async fn verify(args: StoreVerify) -> Result<ExitCode> {
    let StoreVerify { data_dir, snapshot, etcd, json } = args;
    let report = if let Some(data_dir) = &data_dir {
        verify_directory(&store_directory(data_dir)).await?
    } else if let Some(file) = snapshot {
        let read = tokio::task::spawn_blocking(move || verify_snapshot(&file));
        read.await.context("the check was cut short")??
    } else {
        verify_etcd(&etcd).await?
    };
    print(&report, json);
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// Reads every object as the API server does. Checksums of etcd's files are left to etcd.
async fn verify_etcd(args: &crate::args::EtcdArgs) -> Result<Report> {
    let etcd = connect_etcd(args).await?;
    let mut report = Report::default();
    let mut range = Range { prefix: "/registry/".to_owned(), limit: limits::STORE_PAGE, ..Range::default() };
    loop {
        let page = etcd.list(range.clone()).await.context("cannot read from etcd")?;
        (report.revision, range.revision) = (page.revision, page.revision);
        for kv in &page.kvs {
            report.keys += 1;
            report.bytes += kv.value.len() as u64;
            if let Err(problem) = store_check::check(&kv.key, &kv.value) {
                report.problems.push(problem);
            }
        }
        match page.kvs.last() {
            Some(last) if page.more => range.after.clone_from(&last.key),
            _ => return Ok(report),
        }
    }
}

fn print(report: &Report, as_json: bool) {
    if as_json {
        println!("{}", to_json(report));
        return;
    }
    let Report { revision, compacted, keys, checkpoint, segments, records, bytes, notes, problems } = report;
    println!("revision {revision}, compacted up to {compacted}, {keys} keys");
    if *segments > 0 || *checkpoint > 0 {
        println!("checkpoint {checkpoint}, {segments} segments of the log, {records} records, {bytes} bytes");
    }
    for note in notes {
        println!("note: {note}");
    }
    for problem in problems {
        let place = match problem.offset {
            Some(offset) => format!("{}, byte {offset}", problem.file),
            None => problem.file.clone(),
        };
        println!("damaged: {place}: {}\n  {}", problem.what, problem.advice);
    }
    println!("{}", if problems.is_empty() { "sound" } else { "damaged" });
}

fn to_json(report: &Report) -> serde_json::Value {
    let Report { revision, compacted, keys, checkpoint, segments, records, bytes, notes, problems } = report;
    let problems: Vec<_> = problems
        .iter()
        .map(|p| json!({"file": p.file, "offset": p.offset, "what": p.what, "advice": p.advice}))
        .collect();
    json!({
        "sound": problems.is_empty(), "revision": revision, "compacted": compacted, "keys": keys,
        "checkpoint": checkpoint, "segments": segments, "records": records, "bytes": bytes,
        "notes": notes, "problems": problems,
    })
}
