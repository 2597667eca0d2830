//! Rules of STYLE and ARCHITECTURE that the compiler does not know, each a function from sources to complaints.

mod durations;
mod imports;
mod manual;
mod methods;
mod names;
mod options;
mod pages;
mod prose;
mod rules;

use std::fs;

use anyhow::{Result, bail};

use crate::exec;

/// A file of the repository.
#[derive(Clone, Debug)]
struct Source {
    /// Its path from the root.
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// A rule: its name and function.
type Rule = (&'static str, fn(&[Source]) -> Vec<String>);

const RULES: &[Rule] = &[
    ("files stay under 500 lines", rules::short_files),
    ("a Rust file opens with its purpose", rules::opening_line),
    ("sources are ASCII", rules::ascii),
    ("only crates/fuse names fuser", rules::fuser_in_one_crate),
    ("the engine knows neither FUSE nor command lines", rules::engine_dependencies),
    ("a thread acts as a caller only inside of a call on a branch", rules::one_identity),
    ("threads, locks, atomics and clocks are those of crates/sync", rules::by_sync),
    ("unsafe is written only where it may be", rules::unsafe_where_it_may_be),
    ("programs are started in lab::shell", rules::one_shell),
    ("only main ends the process", rules::one_exit),
    ("an option is named in at most four files", options::few_files),
    ("no util, common or helpers files", rules::no_drawers),
    ("every operation has its engine test", rules::op_tests),
    ("no registry but crates.io, no package index", rules::no_registries),
    ("every section of the manual has its tests", manual::headings),
    ("every promise names its test", manual::promises),
    ("every link leads to a file and a heading", pages::links),
    ("every file that is named is there", pages::named_files),
    ("every warning and error can be looked up", pages::log_lines),
    ("a doc comment begins with a noun or a verb", prose::openings),
    ("no part of the program is a person", prose::persons),
    ("no comment is a sentence in parentheses", prose::parentheses),
    ("a type has its name alone in its crate", names::unique_types),
    ("a type says what it is", names::telling_types),
    ("a duration has its name alone in its crate, and its comment", durations::unique_names),
    ("durations are constants", durations::are_constants),
    ("prose fits the width", prose::wide_lines),
    ("every thread has its row in threads.md", pages::threads),
    ("folders of the engine are in no import circle", imports::circles),
    ("types do not grow without bound", methods::large_types),
];

/// Options of the errand.
#[derive(Debug, clap::Args)]
pub(crate) struct Tidy {
    /// Print figures of the layout (lines, import circles, methods, public items) in place of checking rules.
    #[arg(long)]
    print: bool,
}

impl Tidy {
    pub(crate) fn run(&self) -> Result<()> {
        if self.print {
            imports::print(&sources()?);
            return Ok(());
        }
        run()
    }
}

/// Checks every rule on every file that git tracks or would add.
pub(crate) fn run() -> Result<()> {
    let sources = sources()?;
    let mut broken = 0;
    for (rule, check) in RULES {
        for complaint in check(&sources) {
            println!("tidy: {complaint} ({rule})");
            broken += 1;
        }
    }
    if 0 < broken {
        bail!("{broken} rules of tidy are broken");
    }
    println!("tidy: {} rules hold in {} files", RULES.len(), sources.len());
    Ok(())
}

/// Text of the page that lists the durations.
pub(crate) fn durations() -> Result<String> {
    Ok(durations::page(&sources()?))
}

fn sources() -> Result<Vec<Source>> {
    let listed = exec::quiet("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .run()?
        .stdout;
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    // A file may be deleted but still in the index, or not be text.
    let read = |path: &str| fs::read_to_string(exec::root().join(path)).ok();
    Ok(paths.filter_map(|path| Some(Source { path: path.to_owned(), text: read(path)? })).collect())
}

#[cfg(test)]
fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}
