//! `fsstack`, the operator's command: shows, switches and explains the pools of this machine.
//!
//! It finds a pool in the registry, sends a request to its daemon's socket, and prints the reply as a table or JSON.

mod abort;
mod apart;
mod args;
mod bind_mount;
mod branch;
mod branch_word;
mod catalogue;
mod check;
mod copy;
mod dead;
mod doctor;
mod du;
mod explain;
mod failure;
mod job;
mod list;
mod log;
pub(crate) mod mounted;
mod nfs;
mod pages;
mod pool;
mod profile;
mod rule;
mod settings;
mod show;
mod status;
mod support;
mod table;
mod tier;
mod time_limit;
mod top;
mod typed_dir;
mod upgrade;
mod whereis;
mod write_path;

pub use args::Arguments;
pub use failure::{EXIT_CODES, Failed};

use args::Command;
use clap::Parser;
use clap::error::ErrorKind;
use fsstack_pool::Printable;
use fsstack_sys::program;
use show::Style;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Runs the command and returns its exit code.
///
/// A first argument that begins with `/` is a mount: mount.fuse calls the program before the `#` of an fstab line,
/// `fsstack#/a,/b /mnt fuse`, with mount(8)'s grammar.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.first().is_some_and(|first| first.as_bytes().starts_with(b"/")) {
        return settle(Err(become_helper(arguments)));
    }
    let named = std::iter::once(OsString::from("fsstack")).chain(arguments);
    match Arguments::try_parse_from(named) {
        Ok(arguments) if matches!(arguments.command, Command::Check(_)) => {
            let checked = apart::apart(|| settle(obey(&arguments)));
            checked.unwrap_or_else(|error| settle(Err(Failed::system("check: its process", &error))))
        }
        Ok(arguments) => settle(obey(&arguments)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => settle(show::text(&error.to_string())),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                tell(&error.to_string());
                Failed::Usage(String::new()).exit_code()
            }
            _ => settle(Err(Failed::Usage(first_line(&error)))),
        },
    }
}

/// Executes the mount helper, from this program's directory or mount(8)'s; returns the reason if it cannot.
fn become_helper(arguments: Vec<OsString>) -> Failed {
    let beside = std::env::current_exe().unwrap_or_default().with_file_name("mount-fsstack");
    let helper = if beside.exists() { beside } else { PathBuf::from("/sbin/mount.fsstack") };
    let error = program::become_program(&helper, arguments);
    Failed::system(Printable::path(&helper), &error)
}

fn obey(arguments: &Arguments) -> Result<(), Failed> {
    let style = arguments.style();
    match &arguments.command {
        Command::List => list::run(style),
        Command::Status { pool } => status::run(pool.as_deref(), style),
        Command::Get { pool, key } => settings::get(pool, key.as_deref(), style),
        Command::Set(wish) => settings::set(wish, style),
        Command::WritePath(wish) => write_path::run(wish, style),
        Command::Branch(wish) => branch::run(wish, style),
        Command::Rule(wish) => rule::run(wish, style),
        Command::Tier(wish) => tier::run(wish, style),
        Command::Balance(wish) => job::balance(wish, style),
        Command::Consolidate(wish) => job::consolidate(wish, style),
        Command::Job(wish) => job::run(wish, style),
        Command::Upgrade(wish) => upgrade::run(wish, style),
        Command::Where { paths, catalogue: true } => whereis::from_catalogue(paths, style),
        Command::Where { paths, catalogue: false } => whereis::run(paths, style),
        Command::Du(wish) => du::run(wish, style),
        Command::Find(wish) => catalogue::find(wish, style),
        Command::Explain(wish) => explain::run(wish, style),
        Command::Copy(wish) => copy::run(wish, style),
        Command::Nfs(wish) => nfs::run(wish, style),
        Command::Check(wish) => check::run(wish, style),
        Command::Doctor { pool } => doctor::run(pool.as_deref(), style),
        Command::Top { pool } => top::run(pool, style),
        Command::Log(wish) => log::run(wish, style),
        Command::Profile(wish) => profile::run(wish, style),
        Command::Support(_) if style == Style::Json => Err(only_text("support")),
        Command::Metrics { .. } if style == Style::Json => Err(only_text("metrics")),
        Command::Support(wish) => support::run(wish),
        Command::Metrics { pool } => show::text(&pool::find(pool)?.client().metrics()?),
        Command::Print { page } => pages::print(page),
    }
}

/// Refusal of `--json` by a command that has no JSON.
fn only_text(command: &str) -> Failed {
    Failed::Usage(format!(
        "{command}: --json: it prints text only: leave --json out, or use fsstack status --json"
    ))
}

/// First line of clap's error: the reason without the usage.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let reason = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("{} (see fsstack --help)", words.join(" "))
}

fn settle(done: Result<(), Failed>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(failed) => {
            let text = failed.to_string();
            if !text.is_empty() {
                tell(&format!("fsstack: {text}\n"));
            }
            failed.exit_code()
        }
    }
}

/// Errors are ignored: nothing can be done if stderr is closed.
fn tell(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
