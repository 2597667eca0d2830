//! Names from the catalogue.

use super::Served;
use super::rules::dir_of;
use crate::log::utc;
use fsstack_control::Refusal;
use fsstack_control::api::{CatalogueBranch, CatalogueName, CataloguePage, CatalogueRequest, exact};
use fsstack_engine::catalogue::{Asked, CataloguedBranch, FoundName, Subject};
use fsstack_pool::{BranchId, Printable};
use fsstack_sys::Kind;
use glob::Pattern;
use std::collections::HashMap;

/// Names of one reply: it stays below a megabyte or so.
const PAGE: usize = 2000;

impl Served {
    pub(super) fn look_up_names(&self, request: &CatalogueRequest) -> Result<CataloguePage, Refusal> {
        let none = || Refusal::busy("the pool keeps no catalogue: mount it with catalogue=on");
        let failed = |error: fsstack_engine::catalogue::CatalogueError| {
            Refusal::failed(format!("catalogue: {error}: see the daemon's log"))
        };
        let all = self.union.catalogued().ok_or_else(none)?.map_err(failed)?;
        let in_pool = || all.iter().filter(|branch| branch.in_pool).collect::<Vec<_>>();
        let (branches, subject, dir, name, after) = match request {
            CatalogueRequest::Where { path } => {
                let (branches, path) = (in_pool(), dir_of(path)?);
                let ids = ids(&branches);
                let found = self.union.ask_catalogue(|catalogue| catalogue.at(&ids, &path));
                let found = found.ok_or_else(none)?.map_err(failed)?;
                return Ok(reply(&branches, found.as_slice(), None));
            }
            CatalogueRequest::Find { dir, name, branch, after } => {
                let only = branch.as_deref().map(|branch| named(&all, branch)).transpose()?;
                let branches = only.map_or_else(in_pool, |only| vec![only]);
                (branches, Subject::All, dir_of(dir)?, name.as_deref(), after)
            }
            CatalogueRequest::Lost { branch, after } => {
                let lost = named(&all, branch)?;
                let mut branches = in_pool();
                if !lost.in_pool {
                    branches.push(lost);
                }
                (branches, Subject::OnlyOn(lost.id), Vec::new(), None, after)
            }
        };
        let pattern = name.map(Pattern::new).transpose();
        let pattern = pattern.map_err(|error| Refusal::usage(format!("--name: {error}")))?;
        let wanted = |name: &[u8]| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(&String::from_utf8_lossy(name)))
        };
        let ids = ids(&branches);
        let asked = Asked {
            branches: &ids,
            subject,
            below: &dir,
            wanted: &wanted,
            after: after.as_deref(),
            most: PAGE,
        };
        let page = self.union.ask_catalogue(|catalogue| catalogue.page(&asked));
        let page = page.ok_or_else(none)?.map_err(failed)?;
        // Where names are missing it may be there all the same.
        if page.has_no_dir && branches.iter().all(|branch| branch.known.complete) {
            return Err(Refusal::missing(format!("/{}: no directory in the catalogue", shown(&dir))));
        }
        Ok(reply(&branches, &page.names, page.next))
    }

    /// The branch that has left the pool and whose names are in the catalogue, by its path or its id. None: there is none.
    ///
    /// # Errors
    /// Several were at that path.
    pub(super) fn former(&self, text: &str) -> Result<Option<CataloguedBranch>, Refusal> {
        let Some(Ok(mut all)) = self.union.catalogued() else { return Ok(None) };
        all.retain(|branch| !branch.in_pool && is_named(branch, text));
        match all.as_slice() {
            [] | [_] => Ok(all.pop()),
            several => {
                let ids: Vec<String> = several.iter().map(|branch| branch.id.to_string()).collect();
                Err(Refusal::usage(format!(
                    "{}: several branches were there: say which by its id: {}",
                    Printable(text.as_bytes()),
                    ids.join(", ")
                )))
            }
        }
    }
}

fn ids(branches: &[&CataloguedBranch]) -> Vec<BranchId> {
    branches.iter().map(|branch| branch.id).collect()
}

fn reply(branches: &[&CataloguedBranch], names: &[FoundName], next: Option<Vec<u8>>) -> CataloguePage {
    let paths = branches.iter().map(|branch| (branch.id, shown(&branch.path))).collect();
    CataloguePage {
        branches: branches.iter().map(|branch| state(branch)).collect(),
        names: names.iter().map(|name| told(name, &paths)).collect(),
        next,
    }
}

/// The branch that is named by its path or its id.
fn named<'a>(all: &'a [CataloguedBranch], name: &str) -> Result<&'a CataloguedBranch, Refusal> {
    all.iter().find(|branch| is_named(branch, name)).ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|branch| shown(&branch.path)).collect();
        Refusal::missing(format!("{name}: not in the catalogue, which has {}", known.join(", ")))
    })
}

fn is_named(branch: &CataloguedBranch, name: &str) -> bool {
    let trimmed = if name.len() > 1 { name.trim_end_matches('/') } else { name };
    branch.path == trimmed.as_bytes()
        || shown(&branch.path) == trimmed
        || branch.id.get().to_string() == trimmed
}

pub(super) fn shown(path: &[u8]) -> String {
    Printable(path).to_string()
}

fn state(branch: &CataloguedBranch) -> CatalogueBranch {
    let known = branch.known;
    CatalogueBranch {
        branch: shown(&branch.path),
        id: branch.id.get(),
        in_pool: branch.in_pool,
        complete: known.complete,
        walking: known.walking,
        as_of: (known.as_of > 0).then(|| utc(known.as_of)),
    }
}

fn told(name: &FoundName, paths: &HashMap<BranchId, String>) -> CatalogueName {
    let row = &name.row;
    let kind = match row.kind() {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Char | Kind::Block => "device",
    };
    CatalogueName {
        path: shown(&name.path),
        path_base64: exact(&name.path),
        kind: kind.to_owned(),
        mode: format!("{:04o}", row.mode & 0o7777),
        uid: row.uid,
        gid: row.gid,
        size: row.size,
        modified: u64::try_from(row.sec).map_or_else(|_| "before 1970".to_owned(), utc),
        modified_ns: row.sec.saturating_mul(1_000_000_000).saturating_add(row.nsec.into()),
        branches: name.on.iter().filter_map(|on| paths.get(on).cloned()).collect(),
    }
}
