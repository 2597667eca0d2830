//! The site: the repository's Markdown rendered by mdBook, with search and checked links.
//!
//! mdBook needs all pages below one folder with the table of contents at its root. So they are staged below the target
//! directory in the repository's layout, each README as the index of its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{exec, install};

/// The table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Line of the table of contents for the decisions.
const DECISIONS: &str = "- [Decisions](dev/decisions/README.md)\n";

const BOOK: &str = r#"[book]
title = "fsstack"
language = "en"
src = "src"

[output.html]
no-section-label = true
default-theme = "light"
preferred-dark-theme = "navy"
additional-css = ["site.css"]

[output.html.fold]
enable = true
level = 0
"#;

/// Styles for tables on small screens, and for cells aligned at the top.
const STYLE: &str = "\
table td, table th { padding: 3px 10px; vertical-align: top; text-align: left }
@media (max-width: 620px) { table { font-size: 80% } table td, table th { padding: 2px 5px } pre { font-size: 80% } }
";

/// Builds and checks the site. Returns its first page.
pub(super) fn build() -> Result<PathBuf> {
    let book = install::book()?;
    let home = exec::target_dir()?.join("site");
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    stage(&home.join("src"))?;
    fs::write(home.join("book.toml"), BOOK)?;
    fs::write(home.join("site.css"), STYLE)?;
    exec::quiet(&book.display().to_string()).arg("build").arg(&home).run()?;
    let pages = home.join("book");
    let broken = broken(&pages)?;
    if !broken.is_empty() {
        bail!("links of the site that lead nowhere:\n{}", broken.join("\n"));
    }
    Ok(pages.join("index.html"))
}

/// Copies pages and pictures below `src`.
fn stage(src: &Path) -> Result<()> {
    let known = exec::quiet("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .run()?
        .stdout;
    let shown = |path: &&str| {
        let root =
            ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"].contains(path);
        (root || path.starts_with("docs/")) && *path != SUMMARY
    };
    for path in known.split('\0').filter(|path| !path.is_empty()).filter(shown) {
        let from = exec::root().join(path);
        // A file may be deleted but still in the index.
        if !from.is_file() {
            continue;
        }
        let to = src.join(indexed(path));
        fs::create_dir_all(to.parent().context("a path has a parent")?)?;
        if path.ends_with(".md") {
            fs::write(to, indexed(&fs::read_to_string(&from)?))?;
        } else {
            fs::copy(&from, to)?;
        }
    }
    let mut summary = fs::read_to_string(exec::root().join(SUMMARY)).context(SUMMARY)?;
    let decisions = decisions(&exec::root().join("docs/dev/decisions"))?;
    summary = summary.replace(DECISIONS, &format!("{DECISIONS}{decisions}"));
    // Links from the root are relative to it.
    let summary = indexed(&summary).replace("](", "](docs/").replace("](docs/../", "](");
    fs::write(src.join("SUMMARY.md"), summary)?;
    Ok(())
}

/// Lines of the table of contents for the decisions, by their headings.
fn decisions(folder: &Path) -> Result<String> {
    let mut lines = BTreeSet::new();
    for page in fs::read_dir(folder)? {
        let name = page?.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(folder.join(&name))?;
        if let Some(heading) = text.lines().next().and_then(|line| line.strip_prefix("# "))
            && name != "README.md"
        {
            lines.insert((name.clone(), format!("  - [{heading}](dev/decisions/{name})\n")));
        }
    }
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

fn indexed(text: &str) -> String {
    text.replace("README.md", "index.md")
}

/// Lists links to missing pages or headings.
fn broken(pages: &Path) -> Result<Vec<String>> {
    let mut texts = BTreeMap::new();
    let mut open = vec![pages.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "html") {
                let text = fs::read_to_string(&path)?;
                texts.insert(path, text);
            }
        }
    }
    let named =
        texts.iter().map(|(path, text)| (path.clone(), quoted(text, " id=\"").collect::<BTreeSet<_>>()));
    let named: BTreeMap<_, _> = named.collect();
    let mut broken = Vec::new();
    // The print page and the 404 page have links relative to other pages.
    let own =
        |path: &&PathBuf| !["print.html", "404.html", "toc.html"].iter().any(|name| path.ends_with(name));
    for path in texts.keys().filter(own) {
        let text = &texts[path];
        for link in quoted(text, "href=\"").chain(quoted(text, "src=\"")) {
            if link.contains(':') || link.is_empty() || link.starts_with("//") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            let Ok(to) = to.canonicalize() else {
                broken.push(format!("{}: {link}", path.display()));
                continue;
            };
            let missing = |ids: &BTreeSet<&str>| !heading.is_empty() && !ids.contains(heading);
            if named.get(&to).is_some_and(missing) {
                broken.push(format!("{}: {link}: no such heading", path.display()));
            }
        }
    }
    Ok(broken)
}

/// Texts between `mark` and the next quotation mark.
fn quoted<'t>(text: &'t str, mark: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(mark).skip(1).filter_map(|rest| rest.split_once('"')).map(|(value, _)| value)
}
