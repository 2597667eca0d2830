//! Generated documents: pages printed by the two programs, the picture of the crates, the list of durations, and the site.

mod arrows;
mod site;

use std::fs;

use anyhow::{Context, Result};
use clap::Args;
use fsstack_lab::shell;

use crate::{exec, tidy};

/// A page: program and arguments that print it, and its file.
const PAGES: &[(&str, &str, &str, &str)] = &[
    ("mount-fsstack", "--print", "options-md", "docs/options.md"),
    ("mount-fsstack", "--print", "man", "docs/man/mount.fsstack.8"),
    ("mount-fsstack", "--print", "completions-bash", "docs/completions/mount.fsstack.bash"),
    ("mount-fsstack", "--print", "completions-zsh", "docs/completions/_mount.fsstack"),
    ("mount-fsstack", "--print", "completions-fish", "docs/completions/mount.fsstack.fish"),
    ("fsstack", "print", "commands-md", "docs/commands.md"),
    ("fsstack", "print", "man", "docs/man/fsstack.8"),
    ("fsstack", "print", "completions-bash", "docs/completions/fsstack.bash"),
    ("fsstack", "print", "completions-zsh", "docs/completions/_fsstack"),
    ("fsstack", "print", "completions-fish", "docs/completions/fsstack.fish"),
];

/// Page that lists the durations of the programs.
const DURATIONS: &str = "docs/dev/durations.md";

/// Output inserted into a hand-written page, after this line and up to the next empty one.
const README: (&str, &str, &str, &str) = ("mount-fsstack", "--print", "readme-options", "README.md");
const MARK: &str =
    "<!-- The rows are printed by `cargo xtask docs` from the option table; do not edit. -->\n\n";

/// Arguments of `cargo xtask docs`.
#[derive(Debug, Args)]
pub(crate) struct Docs {
    /// Only write the generated pages: no site.
    #[arg(long)]
    pages: bool,
}

impl Docs {
    /// Writes the generated documents and builds the site.
    pub(crate) fn run(&self) -> Result<()> {
        write()?;
        if !self.pages {
            println!("{}", site::build()?.display());
        }
        Ok(())
    }
}

/// Writes every generated document.
fn write() -> Result<()> {
    for (file, text) in printed()? {
        let path = exec::root().join(file);
        fs::create_dir_all(path.parent().context("docs")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        println!("{file}");
    }
    Ok(())
}

/// Lists generated documents that differ from the programs' present output.
pub(crate) fn stale() -> Result<Vec<String>> {
    let held = |file: &str| fs::read_to_string(exec::root().join(file)).unwrap_or_default();
    let stale = printed()?.into_iter().filter(|(file, text)| held(file) != *text);
    Ok(stale
        .map(|(file, _)| format!("{file} is not what it is printed from: run `cargo xtask docs --pages`"))
        .collect())
}

fn printed() -> Result<Vec<(&'static str, String)>> {
    let helper = exec::build_helper("debug")?;
    let page = |(program, verb, page, file): &(&str, &str, &str, &'static str)| {
        let printed = shell::command(helper.with_file_name(program)).args([verb, page]).run()?.stdout;
        Ok((*file, printed))
    };
    let mut pages: Vec<_> = PAGES.iter().map(page).collect::<Result<_>>()?;
    let (file, rows) = page(&README)?;
    let held = fs::read_to_string(exec::root().join(file)).context(file)?;
    pages.push((arrows::FILE, arrows::picture()?));
    pages.push((DURATIONS, tidy::durations()?));
    pages.push((file, with_rows(&held, &rows).with_context(|| format!("{file}: no line {MARK}"))?));
    Ok(pages)
}

/// Replaces the rows after the mark in `page`.
fn with_rows(page: &str, rows: &str) -> Option<String> {
    let (before, after) = page.split_once(MARK)?;
    let (_, after) = after.split_once("\n\n")?;
    Some(format!("{before}{MARK}{rows}\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_behind_the_mark_are_replaced_and_nothing_else() {
        let page = format!("# a\n\n{MARK}| old |\n| rows |\n\n## b\n\nmore\n");
        let new = with_rows(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("# a\n\n{MARK}| new |\n\n## b\n\nmore\n"));
        assert_eq!(with_rows("# a\n", "| new |\n"), None);
    }
}
