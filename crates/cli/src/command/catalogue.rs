//! `fsstack find` and `fsstack branch lost`: names from the catalogue of a pool, without asking its branches.

use super::args::Find;
use super::show::{self, Style};
use super::table::size;
use super::{Failed, branch_word, pool, typed_dir};
use fsstack_control::Client;
use fsstack_control::api::{CatalogueBranch, CatalogueName, CataloguePage, CatalogueRequest};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

/// `fsstack find`.
pub(crate) fn find(wish: &Find, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let dir = wish.dir.as_deref().map(|dir| typed_dir::inside(&pool, dir)).transpose()?;
    let dir = dir.map(|dir| dir.to_string()).unwrap_or_default();
    let branch = wish.branch.as_deref().map(branch_word::path_or_id);
    let name = wish.name.clone();
    let request = |after| CatalogueRequest::Find {
        dir: dir.clone(),
        name: name.clone(),
        branch: branch.clone(),
        after,
    };
    let branches = all_pages(&pool.client(), request, style, |name| format!("/{}\n", name.path))?;
    if style == Style::Human {
        super::tell(&incomplete(&branches));
    }
    Ok(())
}

/// `fsstack branch lost`.
pub(crate) fn lost(word: &OsStr, branch: &Path, style: Style) -> Result<(), Failed> {
    let client = pool::find(word)?.client();
    let branch = branch_word::path_or_id(branch);
    let request = |after| CatalogueRequest::Lost { branch: branch.clone(), after };
    let mut count = 0_u64;
    let branches = all_pages(&client, request, style, |name| {
        count += 1;
        line(name)
    })?;
    if style == Style::Human {
        show::text(&summary(&branches, &branch, count))?;
    }
    Ok(())
}

/// Asks for all pages, and shows the names of each. Returns the state of the branches.
pub(super) fn pages(
    client: &Client,
    request: impl Fn(Option<Vec<u8>>) -> CatalogueRequest,
    mut show: impl FnMut(&CataloguePage) -> Result<(), Failed>,
) -> Result<Vec<CatalogueBranch>, Failed> {
    let mut page = client.catalogue(&request(None))?;
    loop {
        show(&page)?;
        let Some(after) = page.next else { return Ok(page.branches) };
        let mut branches = page.branches;
        page = client.catalogue(&request(Some(after)))?;
        // It may have changed meanwhile, and the first page is from before.
        for (before, now) in branches.iter_mut().zip(&page.branches) {
            before.complete &= now.complete;
        }
        page.branches = branches;
    }
}

/// Prints the names of all pages, page by page; JSON as one document, which is whole if a later page fails, too. Returns the state of
/// the branches.
fn all_pages(
    client: &Client,
    request: impl Fn(Option<Vec<u8>>) -> CatalogueRequest,
    style: Style,
    mut line: impl FnMut(&CatalogueName) -> String,
) -> Result<Vec<CatalogueBranch>, Failed> {
    let mut document = PageWriter::default();
    let asked = pages(client, request, |page| {
        show::live(&match style {
            Style::Human => page.names.iter().map(&mut line).collect::<String>(),
            Style::Json => document.page(page)?,
        })
    });
    match &asked {
        Ok(branches) if style == Style::Json => show::text(&document.end(branches, None)?)?,
        Err(_) if document.has_begun => {
            // The request's own error is reported.
            let _ = show::text(&document.end(&document.branches, document.next.as_deref())?);
        }
        Ok(_) | Err(_) => {}
    }
    asked
}

/// Text of a [`CataloguePage`] with all names, which does not hold them: the states of the branches follow on the names.
#[derive(Default)]
struct PageWriter {
    has_begun: bool,
    /// States as of the last page.
    branches: Vec<CatalogueBranch>,
    next: Option<Vec<u8>>,
}

impl PageWriter {
    fn page(&mut self, page: &CataloguePage) -> Result<String, Failed> {
        (self.branches, self.next) = (page.branches.clone(), page.next.clone());
        let mut text = String::new();
        for name in &page.names {
            text.push_str(if self.has_begun { ",\n    " } else { "{\n  \"names\": [\n    " });
            text.push_str(&json(name)?);
            self.has_begun = true;
        }
        Ok(text)
    }

    /// Ends the document; `next` is where a page begins that could not be had.
    fn end(&self, branches: &[CatalogueBranch], next: Option<&[u8]>) -> Result<String, Failed> {
        let begun = if self.has_begun { "\n  " } else { "{\n  \"names\": [" };
        let (branches, next) = (json(&branches)?, json(&next)?);
        Ok(format!("{begun}],\n  \"branches\": {branches},\n  \"next\": {next}\n}}\n"))
    }
}

fn json(part: &impl Serialize) -> Result<String, Failed> {
    serde_json::to_string(part).map_err(|error| Failed::Refused(error.to_string()))
}

fn line(name: &CatalogueName) -> String {
    let CatalogueName { path, kind, mode, uid, gid, modified, .. } = name;
    let bytes = if kind == "directory" { "-".to_owned() } else { size(Some(name.size)) };
    format!("{kind:9} {mode} {uid}:{gid} {bytes:>8} {modified} /{path}\n")
}

fn summary(branches: &[CatalogueBranch], typed: &str, count: u64) -> String {
    let typed = if typed.len() > 1 { typed.trim_end_matches('/') } else { typed };
    let is_it = |branch: &&CatalogueBranch| branch.branch == typed || branch.id.to_string() == typed;
    let mut text = String::new();
    let _ = writeln!(text, "names that only {typed} has: {count}");
    if let Some(lost) = branches.iter().find(is_it) {
        text.push_str(&match (&lost.as_of, lost.complete) {
            (Some(as_of), true) => format!("the catalogue of {} is complete as of {as_of}\n", lost.branch),
            _ => note(lost),
        });
    }
    for other in branches.iter().filter(|branch| !is_it(branch) && !branch.complete) {
        let _ = writeln!(
            text,
            "the catalogue of {} is not complete: names that it has may stand here as lost",
            other.branch
        );
    }
    text
}

/// Notes on the branches whose names are not all known: those that are missing may be there all the same.
pub(super) fn incomplete(branches: &[CatalogueBranch]) -> String {
    branches.iter().filter(|branch| !branch.complete).map(note).collect()
}

fn note(branch: &CatalogueBranch) -> String {
    let walking = if branch.walking { "; a walk over the branch is under way" } else { "" };
    let as_of = branch.as_of.as_deref().map_or("never".to_owned(), |as_of| format!("as of {as_of}"));
    format!("the catalogue of {} is not complete (last complete: {as_of}){walking}\n", branch.branch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn branch(path: &str, id: u16, complete: bool, as_of: Option<&str>) -> CatalogueBranch {
        let as_of = as_of.map(str::to_owned);
        CatalogueBranch { branch: path.to_owned(), id, in_pool: true, complete, walking: false, as_of }
    }

    #[test]
    fn a_summary_says_of_what_time_it_is_and_what_is_missing() {
        let time = Some("2026-11-24T12:00:00Z");
        let branches = [branch("/a", 7, true, time), branch("/b", 8, false, None)];
        expect![[r"
            names that only /a has: 3
            the catalogue of /a is complete as of 2026-11-24T12:00:00Z
            the catalogue of /b is not complete: names that it has may stand here as lost
        "]]
        .assert_eq(&summary(&branches, "/a/", 3));
        expect![[r"
            names that only 8 has: 0
            the catalogue of /b is not complete (last complete: never)
        "]]
        .assert_eq(&summary(&branches, "8", 0));
    }

    #[test]
    fn pages_of_names_are_one_document() {
        let name = |path: &str| CatalogueName {
            path: path.into(),
            path_base64: None,
            kind: "file".into(),
            mode: "0644".into(),
            uid: 0,
            gid: 5,
            size: 3,
            modified: "2026-11-24T12:00:00Z".into(),
            modified_ns: 0,
            branches: vec!["/b".into()],
        };
        let branches = [branch("/a", 7, true, None)];
        for pages in [vec![], vec![vec![]], vec![vec![name("a")], vec![], vec![name("b"), name("c")]]] {
            let mut document = PageWriter::default();
            let page = |names| CataloguePage { branches: vec![], names, next: None };
            let pages: Vec<_> = pages.into_iter().map(page).collect();
            let mut text: String = pages.iter().map(|page| document.page(page).unwrap()).collect();
            text.push_str(&document.end(&branches, None).unwrap());
            let read: CataloguePage = serde_json::from_str(&text).unwrap();
            let all = pages.into_iter().flat_map(|page| page.names).collect();
            assert_eq!(read, CataloguePage { branches: branches.to_vec(), names: all, next: None }, "{text}");
        }
    }

    #[test]
    fn a_line_has_kind_mode_owner_size_time_and_path() {
        let name = CatalogueName {
            path: "a/film".into(),
            path_base64: None,
            kind: "file".into(),
            mode: "0644".into(),
            uid: 0,
            gid: 5,
            size: 3 << 30,
            modified: "2026-11-24T12:00:00Z".into(),
            modified_ns: 0,
            branches: vec!["/b".into()],
        };
        expect!["file      0644 0:5    3 GiB 2026-11-24T12:00:00Z /a/film\n"].assert_eq(&line(&name));
    }
}
