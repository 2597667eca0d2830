//! `fsstack copy`: parses the request and prints the result.

use super::args::Copy;
use super::show::{self, Style};
use super::table::size;
use super::{Failed, pool};
use crate::copy::{self, Plan};
use fsstack_control::api::Copied;
use fsstack_pool::Printable;
use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;

/// Maximum default number of copying threads.
const MOST_BY_ITSELF: usize = 8;

pub(crate) fn run(wish: &Copy, style: Style) -> Result<(), Failed> {
    let Some((into, sources)) = wish.paths.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(Failed::Usage("what to copy and the pool's directory: SRC... POOLDIR".to_owned()));
    };
    if !into.is_dir() {
        let shown = Printable::path(into);
        return Err(match into.symlink_metadata() {
            Ok(_) => Failed::Usage(format!("{shown}: not a directory: name one of a pool")),
            Err(error) => Failed::system(shown, &error),
        });
    }
    let full = std::fs::canonicalize(into).map_err(|error| Failed::system(Printable::path(into), &error))?;
    let (pool, _) = pool::holding(&full)?;
    let jobs = usize::from(wish.jobs.unwrap_or(0));
    let by_itself = || fsstack_sys::thread::allowed_cpus().len().clamp(1, MOST_BY_ITSELF);
    let plan = Plan {
        sources: sources.to_vec(),
        into: into.clone(),
        mount_point: pool.entry.mount_point(),
        branches: pool.entry.branches.iter().map(|branch| branch.id).collect(),
        jobs: if jobs == 0 { by_itself() } else { jobs },
        verify: wish.verify,
        show: style == Style::Human && std::io::stderr().is_terminal(),
    };
    let copied = copy::copy(&plan, &pool.client())?;
    let failed = copied.failed.len();
    show::answer(style, &copied, human)?;
    if failed > 0 || copied.not_synced.is_some() {
        // Each failure was printed when it occurred.
        let none = String::new();
        return Err(if failed > 0 && is_all_missing(sources, &copied) {
            Failed::Missing(none)
        } else {
            Failed::Refused(none)
        });
    }
    Ok(())
}

/// True if no source exists, so that nothing could be copied.
fn is_all_missing(sources: &[PathBuf], copied: &Copied) -> bool {
    let failed = |source: &PathBuf| {
        let shown = Printable::path(source).to_string();
        copied.failed.iter().any(|one| one.path == shown)
    };
    let missing =
        |source: &PathBuf| source.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    sources.iter().all(|source| failed(source) && missing(source))
}

fn human(copied: &Copied) -> String {
    let Copied { files, bytes, directories, seconds, into, .. } = copied;
    let mut text = format!(
        "{into}: {files} files, {}, {directories} directories in {seconds:.1} s\n",
        size(Some(*bytes))
    );
    for to in &copied.branches {
        text.push_str(&format!("  {}: {} files, {}\n", to.branch, to.files, size(Some(to.bytes))));
    }
    for (count, what) in [
        (copied.hard_links, "hard links"),
        (copied.symlinks, "symbolic links"),
        (copied.others, "special files"),
        (copied.already_there, "were there already"),
        (copied.failed.len() as u64, "could not be copied"),
    ] {
        if count > 0 {
            text.push_str(&format!("  {count} {what}\n"));
        }
    }
    if let Some(why) = &copied.not_synced {
        text.push_str(&format!("  {why}\n"));
    }
    text
}
