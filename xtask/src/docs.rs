//! Documents that are printed from the option table by `mount.fsstack --print`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use fsstack_lab::shell;

use crate::exec;

/// A page of `--print` and the file that holds it.
const PAGES: &[(&str, &str)] = &[
    ("options-md", "docs/options.md"),
    ("man", "docs/man/mount.fsstack.8"),
    ("completions-bash", "docs/completions/mount.fsstack.bash"),
    ("completions-zsh", "docs/completions/_mount.fsstack"),
    ("completions-fish", "docs/completions/mount.fsstack.fish"),
];

/// Writes every generated document.
pub(crate) fn write() -> Result<()> {
    let helper = exec::build_helper("debug")?;
    for (page, file) in PAGES {
        let path = exec::root().join(file);
        fs::create_dir_all(path.parent().context("docs")?)?;
        fs::write(&path, printed(&helper, page)?).with_context(|| path.display().to_string())?;
        println!("{file}");
    }
    Ok(())
}

/// The generated documents that are not what `--print` says today.
pub(crate) fn stale() -> Result<Vec<String>> {
    let helper = exec::build_helper("debug")?;
    let mut stale = Vec::new();
    for (page, file) in PAGES {
        let held = fs::read_to_string(exec::root().join(file)).unwrap_or_default();
        if held != printed(&helper, page)? {
            stale.push(format!(
                "{file} is not what `mount.fsstack --print {page}` says: run `cargo xtask docs`"
            ));
        }
    }
    Ok(stale)
}

fn printed(helper: &Path, page: &str) -> Result<String> {
    Ok(shell::command(helper).args(["--print", page]).run()?.stdout)
}
