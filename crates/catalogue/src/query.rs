//! Names below a directory, over several branches, in the order of their paths, a page at a time.

use std::collections::BTreeMap;

use fsstack_pool::BranchId;

use crate::Result;
use crate::offline::Homes;
use crate::row::Row;
use crate::store::{BRANCHES, Catalogue, NAMES, key_behind, name_key};

/// A name, the branch that has it, and what is known of it.
pub(crate) type FoundRow = (Vec<u8>, BranchId, Row);

/// Names that are looked at for one page at most.
const LOOKED_AT: usize = 200_000;
/// Length of the paths of a page, in bytes, after which it ends.
const MOST_BYTES: usize = 1 << 20;
/// Longest path of a directory whose names are shown, in bytes: no system call takes more than 4096 at once.
const LONGEST_PATH: usize = 16 << 10;

/// Which names are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All.
    All,
    /// Those of this branch that no other branch has.
    OnlyOn(BranchId),
}

/// A question.
pub struct Asked<'a> {
    /// The branches that are asked, the first shown one first.
    pub branches: &'a [BranchId],
    /// Which names are wanted.
    pub subject: Subject,
    /// The directory below which they are, as a path from the pool's root.
    pub below: &'a [u8],
    /// Whether a name is wanted.
    pub wanted: &'a dyn Fn(&[u8]) -> bool,
    /// Where the page before ended.
    pub after: Option<&'a [u8]>,
    /// Names of a page at most.
    pub most: usize,
}

impl std::fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { branches, subject, below, after, most, wanted: _ } = self;
        let mut shown = f.debug_struct("Asked");
        shown.field("branches", branches).field("subject", subject).field("below", below);
        shown.field("after", after).field("most", most).finish()
    }
}

/// A name, and the branches that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundName {
    /// The path from the pool's root, without a leading slash.
    pub path: Vec<u8>,
    /// Attributes on the first of the branches.
    pub row: Row,
    /// The branches, the first shown one first.
    pub on: Vec<BranchId>,
}

/// Names in the order of their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The names.
    pub names: Vec<FoundName>,
    /// Where the next page begins; None: this is the last one.
    pub next: Option<Vec<u8>>,
    /// No branch has the directory below which names were asked for.
    pub has_no_dir: bool,
}

type Names = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Copies of a directory that is being listed.
struct Frame {
    /// Length of its path.
    len: usize,
    dirs: Vec<(BranchId, u64)>,
    /// Names before this one were listed.
    from: Vec<u8>,
    /// Whether `from` itself was.
    beyond: bool,
}

/// A name in a directory, and each branch that has it with its attributes.
type Entry = (Vec<u8>, Vec<(BranchId, Row)>);

impl Catalogue {
    /// Returns a page of names.
    ///
    /// # Errors
    /// The database failed.
    pub fn page(&self, asked: &Asked<'_>) -> Result<Page> {
        let read = self.read()?;
        let (names, branches) = (read.open_table(NAMES)?, read.open_table(BRANCHES)?);
        let mut dirs = Vec::new();
        for branch in asked.branches {
            if let Some(row) = branches.get(branch.get())? {
                dirs.push((*branch, row.value().0));
            }
        }
        let (mut stack, mut path) = begin(&names, dirs, asked)?;
        let has_no_dir = asked.after.is_none()
            && parts(asked.below).next().is_some()
            && stack.last().is_none_or(|top| top.dirs.is_empty());
        let mut page = Page { has_no_dir, ..Page::default() };
        let (mut looked_at, mut bytes) = (0, 0);
        while let Some(top) = stack.last_mut() {
            path.truncate(top.len);
            let Some((name, on)) = next(&names, top, asked)? else {
                stack.pop();
                continue;
            };
            (top.from, top.beyond) = (name.clone(), true);
            push(&mut path, &name);
            let dirs: Vec<_> = on.iter().filter_map(|(at, row)| Some((*at, row.dir()?))).collect();
            let is_subject = match asked.subject {
                Subject::All => true,
                Subject::OnlyOn(only) => on.iter().all(|(at, _)| *at == only),
            };
            if is_subject
                && (asked.wanted)(&name)
                && let Some((_, row)) = on.first()
            {
                let on = on.iter().map(|(at, _)| *at).collect();
                bytes += path.len();
                page.names.push(FoundName { path: path.clone(), row: *row, on });
            }
            if !dirs.is_empty() && path.len() <= LONGEST_PATH {
                stack.push(Frame { len: path.len(), dirs, from: Vec::new(), beyond: false });
            }
            looked_at += 1;
            if page.names.len() >= asked.most || looked_at >= LOOKED_AT || bytes >= MOST_BYTES {
                page.next = Some(path);
                break;
            }
        }
        Ok(page)
    }

    /// The copies of the directory at `path` on `on`, in that order.
    ///
    /// # Errors
    /// The database failed.
    pub fn dirs(&self, on: &[BranchId], path: &[u8]) -> Result<Homes> {
        let read = self.read()?;
        let (names, branches) = (read.open_table(NAMES)?, read.open_table(BRANCHES)?);
        let mut dirs = Vec::new();
        for branch in on {
            if let Some(row) = branches.get(branch.get())? {
                dirs.push((*branch, row.value().0));
            }
        }
        for part in parts(path) {
            dirs = below(&names, &dirs, part)?;
        }
        Ok(dirs)
    }

    /// Attributes of `name` on each branch that has it in its copy of a directory.
    ///
    /// # Errors
    /// The database failed.
    pub fn rows(&self, dirs: &[(BranchId, u64)], name: &[u8]) -> Result<Vec<(BranchId, Row)>> {
        let names = self.read()?.open_table(NAMES)?;
        let mut found = Vec::new();
        for at in dirs {
            found.extend(row_of(&names, *at, name)?.map(|row| (at.0, row)));
        }
        Ok(found)
    }

    /// The names in a directory, each with its first copy's branch and attributes. None: there are more than `most`.
    ///
    /// # Errors
    /// The database failed.
    pub fn list(&self, dirs: &[(BranchId, u64)], most: usize) -> Result<Option<Vec<FoundRow>>> {
        let names = self.read()?.open_table(NAMES)?;
        let mut found = BTreeMap::new();
        for (branch, dir) in dirs {
            let (from, to) = (name_key(branch.get(), *dir, b""), key_behind(branch.get(), *dir));
            let range = match &to {
                Some(to) => names.range(from.as_slice()..to.as_slice())?,
                None => names.range(from.as_slice()..)?,
            };
            for entry in range {
                let (key, row) = entry?;
                let name = key.value().get(10..).unwrap_or_default().to_vec();
                if let Some(row) = Row::parse(row.value()) {
                    found.entry(name).or_insert((*branch, row));
                }
                if found.len() > most {
                    return Ok(None);
                }
            }
        }
        Ok(Some(found.into_iter().map(|(name, (branch, row))| (name, branch, row)).collect()))
    }

    /// The object at `path`, with its attributes on the first of these branches that has it. The root is in no catalogue.
    ///
    /// # Errors
    /// The database failed.
    pub fn at(&self, branches: &[BranchId], path: &[u8]) -> Result<Option<FoundName>> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (dir, name) = slash.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]));
        let rows = self.rows(&self.dirs(branches, dir)?, name)?;
        let Some((_, row)) = rows.first().copied() else { return Ok(None) };
        let on = rows.into_iter().map(|(branch, _)| branch).collect();
        Ok(Some(FoundName { path: path.to_vec(), row, on }))
    }

    /// Attributes of the object at `path` on a branch, and its number if it is a directory. The root has none.
    ///
    /// # Errors
    /// The database failed.
    pub fn row(&self, branch: BranchId, path: &[u8]) -> Result<Option<Row>> {
        let read = self.read()?;
        let (names, branches) = (read.open_table(NAMES)?, read.open_table(BRANCHES)?);
        let Some(mut dir) = branches.get(branch.get())?.map(|row| row.value().0) else { return Ok(None) };
        let mut found = None;
        let mut parts = parts(path).peekable();
        while let Some(part) = parts.next() {
            found = row_of(&names, (branch, dir), part)?;
            match found.and_then(|row| row.dir()) {
                Some(number) => dir = number,
                None if parts.peek().is_some() => return Ok(None),
                None => {}
            }
        }
        Ok(found)
    }
}

/// The directories on the way to where the page begins, and the path of the last one. `roots` are the branches' own.
fn begin(names: &Names, roots: Vec<(BranchId, u64)>, asked: &Asked<'_>) -> Result<(Vec<Frame>, Vec<u8>)> {
    let mut path = Vec::new();
    let mut stack = vec![Frame { len: 0, dirs: roots, from: Vec::new(), beyond: false }];
    for part in parts(asked.below) {
        let Some(top) = stack.pop() else { break };
        push(&mut path, part);
        stack.push(Frame {
            len: path.len(),
            dirs: below(names, &top.dirs, part)?,
            from: Vec::new(),
            beyond: false,
        });
    }
    if let Some(after) = asked.after {
        let rest = after.strip_prefix(path.as_slice()).unwrap_or_default();
        for part in parts(rest) {
            let Some(top) = stack.last_mut() else { break };
            (top.from, top.beyond) = (part.to_vec(), true);
            push(&mut path, part);
            let dirs = below(names, &top.dirs, part)?;
            stack.push(Frame { len: path.len(), dirs, from: Vec::new(), beyond: false });
        }
    }
    Ok((stack, path))
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

fn row_of(names: &Names, (branch, dir): (BranchId, u64), name: &[u8]) -> Result<Option<Row>> {
    let row = names.get(name_key(branch.get(), dir, name).as_slice())?;
    Ok(row.and_then(|row| Row::parse(row.value())))
}

/// The copies of the directory `name` in copies of the one above.
fn below(names: &Names, dirs: &[(BranchId, u64)], name: &[u8]) -> Result<Vec<(BranchId, u64)>> {
    let mut found = Vec::new();
    for at in dirs {
        if let Some(number) = row_of(names, *at, name)?.and_then(|row| row.dir()) {
            found.push((at.0, number));
        }
    }
    Ok(found)
}

/// The next name in the directory of `frame`, and the branches that have it.
fn next(names: &Names, frame: &Frame, asked: &Asked<'_>) -> Result<Option<Entry>> {
    let mut found: Option<Entry> = None;
    for (at, dir) in &frame.dirs {
        // Names that only others have are no subject, nor is anything below them.
        let only = match asked.subject {
            Subject::OnlyOn(only) => only,
            Subject::All => *at,
        };
        if *at != only {
            continue;
        }
        let mut from = name_key(at.get(), *dir, &frame.from);
        if frame.beyond {
            from.push(0); // the first key behind it
        }
        let to = key_behind(at.get(), *dir);
        let mut range = match &to {
            Some(to) if from >= *to => continue,
            Some(to) => names.range(from.as_slice()..to.as_slice())?,
            None => names.range(from.as_slice()..)?,
        };
        let Some((key, row)) = range.next().transpose()? else { continue };
        let Some(row) = Row::parse(row.value()) else { continue };
        let name = key.value().get(10..).unwrap_or_default().to_vec();
        match &mut found {
            Some((first, _)) if *first < name => {}
            Some((first, on)) if *first == name => on.push((*at, row)),
            _ => found = Some((name, vec![(*at, row)])),
        }
    }
    let Some((name, mut on)) = found else { return Ok(None) };
    if let Subject::OnlyOn(only) = asked.subject {
        for at in frame.dirs.iter().filter(|(at, _)| *at != only) {
            if let Some(row) = row_of(names, *at, &name)? {
                on.push((at.0, row));
            }
        }
    }
    Ok(Some((name, on)))
}
