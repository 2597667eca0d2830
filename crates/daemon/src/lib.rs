//! The mount(8) helper: reads what it is asked for, refuses what cannot be, and starts the daemon. Linux only.

mod background;
mod branches;
mod cli;
mod config_file;
mod confine;
mod gather;
mod handover;
mod identity;
mod keeper;
mod launch;
mod operate;
mod optlist;
mod outside;
mod pattern;
mod print;
mod raw;
mod remembered;
mod remount;
mod resolve;
mod restrictions;
mod serve;
mod signals;
mod transport;
mod umount;
mod values;
mod world;

pub mod log;
pub mod options;
pub mod problem;
pub mod settings;

pub use background::Ready;
pub use cli::{Invocation, Request, parse};
pub use launch::{LaunchError, launch};
pub use print::Page;
pub use raw::RawOptions;
pub use resolve::resolve;
pub use world::World;

use handover::adopt;
use problem::{Failure, Problems};
use settings::Settings;
use std::ffi::OsString;
use std::io::{self, Write};

/// Does what the program's name and the arguments ask for, and returns the exit code of mount(8) or umount(8).
pub fn run_as(mut words: impl Iterator<Item = OsString>) -> u8 {
    let program = words.next().unwrap_or_default();
    if umount::is_called(&program) { umount::run(&words.collect::<Vec<_>>()) } else { run(words) }
}

/// Does what the arguments behind the program's name ask for, and returns the exit code of mount(8).
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let mut arguments = arguments.into_iter().peekable();
    let first = arguments.peek().map(OsString::as_os_str);
    if first.is_some_and(|first| first == adopt::ADOPT || first == adopt::CHECK || first == keeper::REVIVE) {
        return go_on(arguments);
    }
    match parse(arguments) {
        Ok(Request::Print(page)) => print(page),
        Ok(Request::Version) => out(concat!("mount.fsstack ", env!("CARGO_PKG_VERSION"), "\n").as_bytes()),
        Ok(Request::Mount(typed)) => mount(&typed),
        Err(problems) => refuse(&problems),
    }
}

/// Takes a mounted pool over, or checks whether it could, or goes on after a daemon's death.
fn go_on(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let done = match arguments.next() {
        Some(first) if first == adopt::CHECK => match adopt::check(&arguments.next().unwrap_or_default()) {
            Ok(answer) => return out(format!("{answer}\n").as_bytes()),
            Err(why) => Err(why),
        },
        Some(first) if first == keeper::REVIVE => keeper::run(arguments),
        _ => adopt::run(arguments),
    };
    match done {
        Ok(()) => 0,
        Err(why) => {
            tell(&why);
            Failure::System.exit_code()
        }
    }
}

fn mount(typed: &Invocation) -> u8 {
    if remount::is_asked_for(typed) {
        return match remount::remount(typed, &World::here()) {
            Ok(notices) => {
                notices.iter().for_each(|notice| tell(notice));
                0
            }
            Err(problems) => refuse(&problems),
        };
    }
    let settings = match resolve(typed, &World::here()) {
        Ok(settings) => settings,
        Err(problems) => return refuse(&problems),
    };
    for notice in &settings.notices {
        tell(notice);
    }
    if typed.verbose {
        describe(&settings);
    }
    if typed.fake {
        return 0;
    }
    match background::start(settings) {
        Ok(()) => 0,
        Err(error) => {
            tell(&error.text);
            error.failure.exit_code()
        }
    }
}

fn describe(settings: &Settings) {
    for branch in &settings.branches {
        tell(&format!("branch {}", branch.spec));
    }
    tell(&format!(
        "mount point {}, create={}, floor {}",
        fsstack_pool::Printable::path(&settings.mount_point),
        settings.options.engine.create,
        settings.options.engine.floor
    ));
}

fn refuse(problems: &Problems) -> u8 {
    for problem in problems {
        tell(&problem.text);
    }
    problems.failure().exit_code()
}

fn print(page: Page) -> u8 {
    match page.render() {
        Ok(text) => out(&text),
        Err(error) => {
            tell(&format!("cannot make that page: {error}"));
            Failure::System.exit_code()
        }
    }
}

/// A reader that went away early (`| head`) is no failure.
fn out(text: &[u8]) -> u8 {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Failure::System.exit_code(),
        _ => 0,
    }
}

/// Prints one line for the caller; there is nothing to do where stderr is closed.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "mount.fsstack: {text}");
}
