//! A program that says it can take a pool over, and cannot: for tests of `fsstack upgrade`.
//!
//! Run by `--adopt STATE BACK -`, it becomes the program before again, as one does that fails; under a name that has "dies" in it, it ends.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::ExitCode;

use fsstack_sys::handover;

/// Answers the check of the state at `path`.
fn answer(path: OsString) -> Option<()> {
    let state = std::fs::read(path).ok()?;
    let format = u32::from_le_bytes(state.get(8..12)?.try_into().ok()?);
    // The first text in it that has 32 hexadecimal digits and nothing else.
    let mut texts = state.split(|byte| !matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let question = std::str::from_utf8(texts.find(|text| text.len() == 32)?).ok()?;
    println!("mount.fsstack: takes over a state of format {format}: {question}");
    Some(())
}

fn main() -> ExitCode {
    let mut all = std::env::args_os();
    let name = all.next().unwrap_or_default();
    match all.next() {
        Some(first) if first == "--adopt" => {}
        _ => return all.next().and_then(answer).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
    }
    let own = std::env::current_exe().unwrap_or_default();
    let (Some(state), Some(back)) = (all.next(), all.next()) else { return ExitCode::FAILURE };
    let back = back.to_str().and_then(|back| handover::copy_of(back.parse().ok()?).ok());
    let Some(back) = back.filter(|_| !own.to_string_lossy().contains("dies")) else {
        return ExitCode::FAILURE;
    };
    let told = [name, "--adopt".into(), state, "-".into(), "the stand-in says no".into()];
    let arguments: Vec<OsString> = told.into_iter().chain(all.skip(1)).collect();
    eprintln!("{}", handover::become_file(back.as_fd(), &arguments));
    ExitCode::FAILURE
}
