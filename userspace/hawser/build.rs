//! Records what the program was built from, for `/version`: the commit, whether the tree had uncommitted
//! changes, the date, and the compiler. Without git, as in an unpacked archive, the commit is that of
//! `HAWSER_GIT_COMMIT`, or unknown. The date is `SOURCE_DATE_EPOCH` or that of the commit, never the current
//! one, so that the same sources build the same program. A release build also folds identical functions.

// Cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::process::Command;

fn main() {
    for variable in ["HAWSER_GIT_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    watch();
    fold_identical_functions();
    let given = std::env::var("HAWSER_GIT_COMMIT").ok().filter(|commit| !commit.is_empty());
    let found = git(&["rev-parse", "HEAD"]);
    let state = match (&given, &found) {
        (None, Some(_)) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => "clean",
            _ => "dirty",
        },
        // The same word as in Kubernetes.
        _ => "archive",
    };
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().filter(|text| !text.is_empty());
    let epoch = epoch.or_else(|| git(&["show", "-s", "--format=%ct", "HEAD"]));
    let seconds = epoch.and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    set("COMMIT", &given.or(found).unwrap_or_default());
    set("TREE_STATE", state);
    set("DATE", &date(seconds));
    set("RUSTC", &compiler());
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env=HAWSER_BUILD_{name}={value}");
}

/// Lets the linker keep one of several functions with the same machine code, most of which are instances of
/// generic functions. Only LLD can, which is Rust's default linker on this platform alone.
fn fold_identical_functions() {
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Makes Cargo run the script again after a commit or a checkout.
fn watch() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// Runs git and returns its output, if git is installed and this is its tree.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// `rustc 1.90.0`
fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("--version").output().ok();
    let said = said.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    said.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Formats seconds since 1970 as RFC 3339: the civil date of a day of the proleptic Gregorian calendar, as in
/// "chrono-Compatible Low-Level Date Algorithms" by Howard Hinnant.
fn date(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
