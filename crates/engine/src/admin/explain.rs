//! Where something is, why its bytes go as they do, and where something new would be put and why: by the same code
//! that finds, opens and places.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::{BranchIx, Candidate, DirPlacement, Printable, Rejection};
use fsstack_sys::{Errno, Kind};

use crate::files::decision::PathDecision;
use crate::handles::by_number::ConnectedDir;
use crate::inode::Inode;
use crate::inode::clock::Moment;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::place::random;
use crate::tree::placement::placement_in;
use crate::tree::resolve::{Found, is_private};
use crate::union::Union;

/// Object of a path of the pool.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    /// Kind, by the copy that is served.
    pub kind: Kind,
    /// Every copy, in the order of the branches.
    pub copies: Vec<CopyAt>,
    /// Branches that could not be asked whether they have one.
    pub unknown: Vec<PathBuf>,
}

/// One copy.
#[derive(Clone, Debug)]
pub struct CopyAt {
    /// The branch.
    pub branch: BranchIx,
    /// Its path on the branch.
    pub path: PathBuf,
    /// Kind of the copy.
    pub kind: Kind,
    /// Its size there, bytes.
    pub size: u64,
    /// It is served: of a file the first copy, of a directory every one that is a directory. Others are hidden.
    pub served: bool,
}

/// Why something is where it is, and why its bytes go as they do.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Where it is.
    pub at: Whereabouts,
    /// The placement rule for its directory.
    pub rule: Option<ExplainedRule>,
    /// How its bytes go, or would go, were it opened now; None: it is no file.
    pub way: Option<WritePathReasons>,
}

/// The placement rule for what is in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRule {
    /// The rule, as it is written.
    pub rule: String,
    /// The object is on another branch than the rule names.
    pub is_against: bool,
}

/// How a file's bytes go, and why.
#[derive(Clone, Debug)]
pub struct WritePathReasons {
    /// Why the first open decided as it did; None: it is not open.
    pub is: Option<PathDecision>,
    /// Decision of an open made now.
    pub would: PathDecision,
    /// Why it was not moved when its branch was full.
    pub stays: Option<String>,
}

/// Where something new would be put.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The policy, as it is written.
    pub policy: String,
    /// The placement rule that decides, as it is written.
    pub rule: Option<String>,
    /// The deepest directory on the way that exists: what is missing below is made on the chosen branch.
    pub parent: Vec<u8>,
    /// The branches: those that are tried first, in that order, then those that are refused.
    pub ranking: Vec<RankedCandidate>,
    /// Lots are drawn: another ranking may come out the next time.
    pub by_lot: bool,
}

/// A branch in a ranking.
#[derive(Clone, Debug)]
pub struct RankedCandidate {
    /// The branch.
    pub branch: BranchIx,
    /// Its path.
    pub path: PathBuf,
    /// Facts that it was judged by.
    pub facts: Candidate,
    /// When it is tried, from 1; None: it is refused.
    pub turn: Option<usize>,
    /// Why it comes there, or is refused: one line.
    pub why: String,
    /// It has room for the size that was asked about, and its floor besides.
    pub fits: bool,
}

impl Union {
    /// All copies of what is at `path`, below the pool's root.
    ///
    /// # Errors
    /// ENOENT if there is none; EIO if that cannot be known.
    pub fn where_is(&self, path: &[u8]) -> Result<Whereabouts> {
        let pool = self.tree.pool.load();
        let Some((parent, name)) = self.tree.lead(&pool, path)? else { return Ok(roots(&pool)) };
        self.tree.whereabouts(&pool, &parent, &name)
    }

    /// Where what is at `path` is, and why its bytes go as they do.
    ///
    /// # Errors
    /// ENOENT if nothing is there; what a branch answered.
    pub fn explain(&self, path: &[u8]) -> Result<Explained> {
        let pool = self.tree.pool.load();
        let Some((parent, name)) = self.tree.lead(&pool, path)? else {
            return Ok(Explained { at: roots(&pool), rule: None, way: None });
        };
        let at = self.tree.whereabouts(&pool, &parent, &name)?;
        let asked = Moment::now();
        let found = self.tree.find(&pool, &parent, &name)?;
        let placement = placement_in(&pool, &parent);
        let rule = placement.rule().map(|rule| ExplainedRule {
            rule: rule.rule.to_string(),
            is_against: matches!(&found, Found::File(on, _) if placement.is_against(*on)),
        });
        let (on, stat) = match found {
            Found::File(on, stat) if stat.kind() == Kind::File => (on, stat),
            Found::File(..) | Found::Dir(..) => return Ok(Explained { at, rule, way: None }),
        };
        let id = self.tree.identity(&pool, pool.branch(on), &stat);
        let known = self.tree.inodes.get(id.ino).filter(|inode| inode.id == id && inode.branch().is_some());
        let inode = known.unwrap_or_else(|| Arc::new(Inode::file(id, stat.kind(), on)));
        inode.note_name(&parent, &name, stat.nlink, asked);
        let open = inode.open_file().and_then(|file| file.because().map(|is| (file, is)));
        let way = match open {
            Some((file, is)) => WritePathReasons {
                is: Some(is),
                would: self.files.choose_again(&pool, &inode, &file),
                stays: file.why().map(|why| why.to_string()),
            },
            None => WritePathReasons {
                is: None,
                would: self.files.choose_closed(&self.tree, &pool, &inode)?,
                stays: None,
            },
        };
        Ok(Explained { at, rule, way: Some(way) })
    }

    /// Branches in the order of trial for a new object of `size` bytes at `path`. The pool does not know a file's size when
    /// it is created, and ranks without it; bulk copies give it, and take the first that fits.
    ///
    /// # Errors
    /// EEXIST if something is there; ENOTDIR if a file is on the way; EIO if that cannot be known.
    pub fn explain_create(&self, path: &[u8], size: u64) -> Result<Placement> {
        let pool = self.tree.pool.load();
        let names = names_of(path)?;
        let (parent, done) = self.tree.walk_down(&pool, &names)?;
        self.tree.check_free(&pool, &parent, &names[done..])?;
        // The directories that are missing are made first, and have the rule for their paths.
        let above = names.iter().rev().skip(1).rev().map(|name| name.to_bytes());
        let placement = DirPlacement::new(&pool.settings.create, pool.rules.find(above));
        let facts = self.tree.candidates(&pool, &parent, &placement, |_, _| true);
        let ranking = placement.rank(&facts, &mut random);
        let facts_of = |at: BranchIx| facts.iter().find(|facts| facts.branch == at).copied();
        let mut rows = Vec::with_capacity(facts.len());
        let mut by_lot = false;
        for (place, at) in ranking.order.iter().enumerate() {
            let Some(facts) = facts_of(*at) else { continue };
            let why = placement.turn(&facts).map_or_else(
                |_| String::new(),
                |(stage, turn)| {
                    by_lot |= turn.is_by_lot();
                    let stage = stage.words();
                    format!("{stage}{}{}", if stage.is_empty() { "" } else { ", " }, turn.explain(&facts))
                },
            );
            rows.push(row(&pool, &placement, facts, Some(place + 1), why, size));
        }
        for (at, why) in &ranking.refused {
            let Some(facts) = facts_of(*at) else { continue };
            let path = &pool.branch(*at).path;
            let line = fsstack_pool::explain(path, &ruled(&placement, &facts), *why).to_string();
            let why = line.strip_prefix(&format!("{}: ", Printable::path(path))).unwrap_or(&line).to_owned();
            rows.push(row(&pool, &placement, facts, None, why, size));
        }
        let parent = parent.path().unwrap_or_default();
        let rule = placement.rule().map(|rule| rule.rule.to_string());
        Ok(Placement { policy: placement.chain().to_string(), rule, parent, ranking: rows, by_lot })
    }

    /// Why nothing can be made in the pool's root now, as no branch has room above its floor: a reason for each branch. None:
    /// something can be made, or it is not for want of room.
    pub fn nothing_fits(&self) -> Option<Vec<String>> {
        let pool = self.tree.pool.load();
        let (root, _) = self.tree.walk_down(&pool, &[]).ok()?;
        let placement = placement_in(&pool, &root);
        let facts = self.tree.candidates(&pool, &root, &placement, |_, _| true);
        let ranking = placement.rank(&facts, &mut random);
        let too_full = ranking.refused.iter().any(|(_, why)| *why == Rejection::TooFull);
        let reported = ranking.refused.iter().filter_map(|(at, why)| {
            let facts = facts.iter().find(|facts| facts.branch == *at)?;
            let facts = ruled(&placement, facts);
            Some(fsstack_pool::explain(&pool.branch(*at).path, &facts, *why).to_string())
        });
        (too_full && ranking.order.is_empty()).then(|| reported.collect())
    }
}

impl Tree {
    /// The directory that holds the last name of `path`, and that name; None: the root.
    fn lead(&self, pool: &Pool, path: &[u8]) -> Result<Option<(Arc<Inode>, CString)>> {
        let mut names = names_of(path)?;
        let Some(last) = names.pop() else { return Ok(None) };
        let (parent, done) = self.walk_down(pool, &names)?;
        if done < names.len() {
            return Err(OpError::MISSING);
        }
        Ok(Some((parent, last)))
    }

    /// Follows `names` as far down as there are directories: returns the last one, and the number of names that lead to it.
    pub(crate) fn walk_down(&self, pool: &Pool, names: &[CString]) -> Result<(Arc<Inode>, usize)> {
        let mut dir = self.inodes.root().clone();
        for (done, name) in names.iter().enumerate() {
            match self.find(pool, &dir, name) {
                Ok(Found::Dir(stats, copies)) => {
                    let id = self.dir_identity(pool, &dir, name, &stats)?;
                    let here = ConnectedDir { parent: dir, name: name.clone(), stats, copies, id };
                    dir = self.pass_by(&here);
                }
                Ok(Found::File(..)) => return Ok((dir, done)),
                Err(error) if error.is_missing() => return Ok((dir, done)),
                Err(error) => return Err(error),
            }
        }
        Ok((dir, names.len()))
    }

    /// `missing` can be made in `dir`.
    ///
    /// # Errors
    /// EEXIST if it is there, ENOTDIR if a file is in its way.
    pub(crate) fn check_free(&self, pool: &Pool, dir: &Arc<Inode>, missing: &[CString]) -> Result<()> {
        let Some(first) = missing.first() else { return Err(Errno::EXIST.into()) };
        crate::tree::resolve::check_public(pool, dir, first)?;
        match self.find(pool, dir, first) {
            Err(error) if error.is_missing() => Ok(()),
            Err(error) => Err(error),
            Ok(_) if missing.len() == 1 => Err(Errno::EXIST.into()),
            Ok(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn whereabouts(&self, pool: &Pool, parent: &Arc<Inode>, name: &CString) -> Result<Whereabouts> {
        if is_private(pool, parent, name) {
            return Err(OpError::MISSING);
        }
        let relative = [parent.path().unwrap_or_default(), name.to_bytes().to_vec()].join(&b'/');
        let (mut copies, mut unknown) = (Vec::<CopyAt>::new(), Vec::new());
        for at in parent.copies() {
            let branch = pool.branch(at);
            match self.stat_in(pool, parent, at, name) {
                Ok(stat) => {
                    let served = copies.first().is_none_or(|first| first.kind == Kind::Dir && stat.is_dir());
                    let path = below(&branch.path, &relative);
                    copies.push(CopyAt { branch: at, path, kind: stat.kind(), size: stat.size, served });
                }
                Err(error) if error.is_missing() => {}
                Err(error) if error.is_fault() => unknown.push(branch.path.clone()),
                Err(error) => return Err(error),
            }
        }
        match copies.first() {
            Some(first) => Ok(Whereabouts { kind: first.kind, copies, unknown }),
            None if unknown.is_empty() && !parent.is_unsure() => Err(OpError::MISSING),
            None => Err(OpError::UNSURE),
        }
    }
}

fn row(
    pool: &Pool,
    placement: &DirPlacement<'_>,
    facts: Candidate,
    turn: Option<usize>,
    why: String,
    size: u64,
) -> RankedCandidate {
    let path = pool.branch(facts.branch).path.clone();
    let fits = placement.fits(&facts, size);
    RankedCandidate { branch: facts.branch, path, facts: ruled(placement, &facts), turn, why, fits }
}

/// The facts with the floor of the rule.
fn ruled(placement: &DirPlacement<'_>, facts: &Candidate) -> Candidate {
    Candidate { floor: placement.floor(facts.branch, facts.floor), ..*facts }
}

/// The names of a path below the pool's root.
///
/// # Errors
/// EINVAL for `.`, `..` and NUL.
pub(crate) fn names_of(path: &[u8]) -> Result<Vec<CString>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names
        .map(|name| match name {
            b"." | b".." => Err(Errno::INVAL.into()),
            name => CString::new(name).map_err(|_| Errno::INVAL.into()),
        })
        .collect()
}

fn below(branch: &Path, relative: &[u8]) -> PathBuf {
    let relative = relative.strip_prefix(b"/").unwrap_or(relative);
    branch.join(OsStr::from_bytes(relative))
}

fn roots(pool: &Pool) -> Whereabouts {
    let copies = pool.branches.iter().map(|branch| CopyAt {
        branch: branch.ix,
        path: branch.path.clone(),
        kind: Kind::Dir,
        size: 0,
        served: true,
    });
    Whereabouts { kind: Kind::Dir, copies: copies.collect(), unknown: Vec::new() }
}
