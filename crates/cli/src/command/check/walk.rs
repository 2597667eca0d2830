//! Walks the branches side by side, in the order of names, depth first.
//!
//! A directory that is on several branches is read on all of them at once. Names of one directory a level are held in
//! memory, nothing else: the order of names is also the cursor with which an interrupted walk goes on.

use super::beside::BesideDaemon;
use super::compare::{self, Compared, DirTraits};
use super::fix::{self, DirPair, Fixed, HiddenPair};
use super::marks::{MarkOf, Marks};
use super::output;
use super::rules::{self, DirRule};
use super::watch::{Reporter, Scope, shown};
use super::{OpenBranch, cursor};
use crate::command::Failed;
use fsstack_control::Client;
use fsstack_control::api::{CheckFinding, CheckKind};
use fsstack_pool::HIDDEN_FOLDERS;
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::dirents::Dirents;
use fsstack_sys::xattr::On;
use fsstack_sys::{Errno, Kind, OFlags, Stat};
use std::ffi::{CStr, CString};
use std::iter::Peekable;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::vec::IntoIter;

/// Bytes that are read of a directory at a time.
const BUFFER: usize = 64 << 10;

/// A name in one copy of a directory.
struct ListedName {
    name: CString,
    /// Index in [`Level::copies`].
    copy: usize,
    kind: Option<Kind>,
}

/// A copy of a directory.
struct DirCopy {
    /// Index of its branch.
    branch: usize,
    dir: OwnedFd,
}

/// A directory of the pool that is being walked.
struct Level {
    /// Length of its path.
    path: usize,
    copies: Vec<DirCopy>,
    names: Peekable<IntoIter<ListedName>>,
    /// Index of the placement rule for its files.
    rule: Option<usize>,
    /// Rest of the cursor: names before its first one are passed over.
    from: Vec<Vec<u8>>,
}

/// A walk of the branches.
pub(super) struct Walk {
    branches: Vec<Arc<OpenBranch>>,
    reporter: Reporter,
    /// The daemon, where findings are fixed.
    fixes_beside: Option<Arc<BesideDaemon>>,
    /// Whether all branches of the pool are walked.
    complete: bool,
    marks: Marks,
    rules: Arc<[DirRule]>,
    /// Path in the pool of the name at hand.
    path: Vec<u8>,
    levels: Vec<Level>,
}

impl Walk {
    pub(super) fn new(
        branches: Vec<Arc<OpenBranch>>,
        reporter: Reporter,
        scope: &Scope,
        client: Client,
    ) -> Self {
        let marks = Marks::new(client);
        Self {
            branches,
            reporter,
            fixes_beside: scope.fixes_beside.clone(),
            complete: scope.complete,
            marks,
            rules: scope.rules.clone(),
            path: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Walks the directory `start`, from the path `from` on. Returns where it was interrupted.
    pub(super) fn run(&mut self, start: &[Vec<u8>], from: &[Vec<u8>]) -> Result<Option<String>, Failed> {
        let copies = self.reach(start)?;
        let from = from.strip_prefix(start).unwrap_or(&[]).to_vec();
        self.enter(copies, from)?;
        while let Some(level) = self.levels.last_mut() {
            self.path.truncate(level.path);
            let Some(first) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let mut group = vec![first];
            while let Some(other) = level.names.next_if(|next| next.name == group[0].name) {
                group.push(other);
            }
            let mut deeper = Vec::new();
            if let [wanted, rest @ ..] = level.from.as_slice() {
                match group[0].name.to_bytes().cmp(wanted.as_slice()) {
                    std::cmp::Ordering::Less => continue,
                    std::cmp::Ordering::Equal => deeper = rest.to_vec(),
                    std::cmp::Ordering::Greater => {}
                }
                level.from.clear();
            }
            self.path.push(b'/');
            self.path.extend_from_slice(group[0].name.to_bytes());
            if self.reporter.is_over() {
                let next = cursor(&self.path);
                self.look_for_marked(true)?;
                return Ok(Some(next));
            }
            self.reporter.watch.passes(&self.path);
            self.visit(&group, deeper)?;
            self.look_for_marked(false)?;
        }
        self.look_for_marked(true)?;
        Ok(None)
    }

    /// Opens the copies of the directory where the walk begins.
    fn reach(&mut self, start: &[Vec<u8>]) -> Result<Vec<DirCopy>, Failed> {
        let mut copies = Vec::new();
        for (index, branch) in self.branches.clone().iter().enumerate() {
            self.reporter.watch.calls(index);
            let mut dir = at::open_dir(branch.root.as_fd(), c".", branch.mounts);
            for name in start {
                let Ok(name) = CString::new(name.as_slice()) else { continue };
                dir = dir.and_then(|dir| at::open_dir(dir.as_fd(), &name, branch.mounts));
            }
            match dir {
                Ok(dir) => copies.push(DirCopy { branch: index, dir }),
                Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => self.not_checked(index, &error)?,
            }
        }
        for name in start {
            self.path.push(b'/');
            self.path.extend_from_slice(name);
        }
        if copies.is_empty() && !start.is_empty() {
            return Err(Failed::Missing(format!("{}: no such directory on the branches", shown(&self.path))));
        }
        Ok(copies)
    }

    /// Compares the copies of the directory at hand, and lists them.
    fn enter(&mut self, copies: Vec<DirCopy>, from: Vec<Vec<u8>>) -> Result<(), Failed> {
        // On the way to where the walk goes on, directories were compared before.
        if from.is_empty() {
            self.compare_copies(&copies)?;
        }
        let mut names = Vec::new();
        for (index, copy) in copies.iter().enumerate() {
            self.reporter.watch.calls(copy.branch);
            let listed = at::reopen_quietly(copy.dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
                .and_then(|dir| list(dir, index, &mut names));
            if let Err(error) = listed {
                self.not_checked(copy.branch, &error)?;
            }
        }
        if self.path.is_empty() {
            names.retain(|listed| !HIDDEN_FOLDERS.contains(&listed.name.as_c_str()));
        }
        names.sort_unstable_by(|a, b| (&a.name, a.copy).cmp(&(&b.name, b.copy)));
        let names = names.into_iter().peekable();
        let rule = rules::innermost(&self.rules, &self.path);
        self.levels.push(Level { path: self.path.len(), copies, names, rule, from });
        Ok(())
    }

    fn compare_copies(&mut self, copies: &[DirCopy]) -> Result<(), Failed> {
        let [first, others @ ..] = copies else { return Ok(()) };
        if others.is_empty() {
            return Ok(());
        }
        for other in others {
            self.reporter.watch.calls(other.branch);
            // A change through the pool reaches one copy after the other: only a second difference is reported.
            let differs = || {
                let (own, first) = (DirTraits::of(other.dir.as_fd())?, DirTraits::of(first.dir.as_fd())?);
                Ok(own.difference(&first))
            };
            let difference = match differs() {
                Ok(text) if !text.is_empty() => differs(),
                done => done,
            };
            match difference {
                Ok(text) if text.is_empty() => {}
                Ok(text) => self.differs(first, other, &text)?,
                Err(error) => self.not_checked(other.branch, &error)?,
            }
        }
        Ok(())
    }

    /// Tells of a copy of the directory at hand, and makes it like the first.
    fn differs(&self, first: &DirCopy, other: &DirCopy, difference: &str) -> Result<(), Failed> {
        let (on, behind) = (self.branch(first.branch), self.branch(other.branch));
        let finding = self.finding(
            CheckKind::Differs,
            format!("its copy on {behind} differs from that on {on}: {difference}"),
            "set it anew through the pool (chown, chmod, setfacl, setfattr, chattr): all copies get it",
        );
        // The administrator makes the roots.
        if self.path.is_empty() {
            return self.reporter.add(finding);
        }
        if !self.complete {
            let remedy = "check again when all branches answer: another one may have the copy that is shown";
            return self.reporter.add(CheckFinding { remedy: remedy.to_owned(), ..finding });
        }
        let offer = format!("made like that on {on}, which the pool shows");
        let pair = DirPair {
            path: &self.path,
            shown: (first.branch, first.dir.as_fd()),
            other: (other.branch, other.dir.as_fd()),
        };
        self.fix(finding, other.branch, offer, |_, _| {
            fix::make_equal(&pair, &self.branches, &self.reporter.watch)
        })
    }

    /// Looks at one name of the pool on all branches that have it.
    fn visit(&mut self, group: &[ListedName], from: Vec<Vec<u8>>) -> Result<(), Failed> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let name = group[0].name.clone();
        if let [ListedName { kind: Some(kind), copy, .. }] = group
            && *kind != Kind::Dir
            && self.rule_against(*copy).is_none()
        {
            return if *kind == Kind::File { self.mark(&name, *copy, false) } else { Ok(()) };
        }
        let (mut present, mut failed) = (Vec::new(), Vec::new());
        for listed in group {
            let Some(copy) = level.copies.get(listed.copy) else { continue };
            self.reporter.watch.calls(copy.branch);
            match at::stat(copy.dir.as_fd(), &name) {
                Ok(stat) => present.push((listed.copy, stat)),
                Err(error) if error.errno == Errno::NOENT => {}
                Err(error) => failed.push((copy.branch, error)),
            }
        }
        for (branch, error) in failed {
            self.not_checked(branch, &error)?;
        }
        let Some(((first, stat), later)) = present.split_first() else { return Ok(()) };
        if !stat.is_dir() {
            self.misplaced(*first, stat)?;
        }
        for (other, its) in later {
            if stat.is_dir() != its.is_dir() {
                self.other_kind(stat.is_dir(), *first, *other)?;
            } else if !stat.is_dir() {
                self.hidden(&name, (*first, stat), (*other, its))?;
            }
        }
        for (copy, stat) in present.iter().filter(|(_, stat)| stat.is_dir() || stat.is_file()) {
            self.mark(&name, *copy, stat.is_dir())?;
        }
        if stat.is_dir() { self.descend(&name, &present, from) } else { Ok(()) }
    }

    /// The placement rule for the directory at hand, if files in this copy of it lie against that.
    fn rule_against(&self, copy: usize) -> Option<&DirRule> {
        let rule = self.rules.get(self.levels.last()?.rule?)?;
        rule.is_against(self.of_level(copy)).then_some(rule)
    }

    /// Tells of a file that is shown from a branch which the placement rule for its directory does not name. Of a file with several
    /// names that depends on where the others are, which is not known here.
    fn misplaced(&self, copy: usize, stat: &Stat) -> Result<(), Failed> {
        let Some(rule) = self.rule_against(copy).filter(|_| stat.nlink <= 1) else { return Ok(()) };
        let branch = self.of_level(copy);
        self.reporter.add(self.finding(
            CheckKind::Misplaced,
            format!("it is on {branch}, which the placement rule for {} does not name", rule.shown),
            "fsstack balance POOL --rules moves such files",
        ))
    }

    /// Tells of a file that hides a directory, or a directory that hides a file.
    fn other_kind(&self, first_is_dir: bool, first: usize, other: usize) -> Result<(), Failed> {
        let (first, other) = (self.of_level(first), self.of_level(other));
        let (shows, hides) = if first_is_dir { ("directory", "file") } else { ("file", "directory") };
        self.reporter.add(self.finding(
            CheckKind::OtherKind,
            format!("a {shows} on {first} hides a {hides} on {other}"),
            &format!("rename the {hides} on the branch to see both"),
        ))
    }

    /// Tells of a file that another one hides, and sets a duplicate aside.
    fn hidden(&self, name: &CStr, first: (usize, &Stat), other: (usize, &Stat)) -> Result<(), Failed> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let (Some(shows), Some(hides)) = (level.copies.get(first.0), level.copies.get(other.0)) else {
            return Ok(());
        };
        let watch = &self.reporter.watch;
        let pair = HiddenPair {
            name,
            path: &self.path,
            shows: Compared { branch: shows.branch, dir: shows.dir.as_fd(), stat: first.1 },
            hides: Compared { branch: hides.branch, dir: hides.dir.as_fd(), stat: other.1 },
        };
        let compared = compare::contents(pair.shows, pair.hides, name, watch);
        // A move under way has both copies for a moment.
        if gone(pair.shows.dir, name) || gone(pair.hides.dir, name) {
            return Ok(());
        }
        let (on, behind) = (self.branch(shows.branch), self.branch(hides.branch));
        let (relation, traits) = match compared.and_then(|relation| Ok((relation, pair.other_traits()?))) {
            Ok((relation, traits)) => (relation.to_owned(), traits),
            Err(error) => (format!("not compared, {error}"), String::new()),
        };
        let comma = if traits.is_empty() { "" } else { ", " };
        let path = shown(&self.path);
        let finding = self.finding(
            CheckKind::Hidden,
            format!("the file on {on} hides one on {behind} ({relation}{comma}{traits})"),
            &format!("compare {on}{path} with {behind}{path}, and rename or remove one of them there"),
        );
        let same = relation == compare::SAME_CONTENT || relation == compare::SAME_TARGET;
        if !same || !traits.is_empty() || pair.is_one_file() {
            return self.reporter.add(finding);
        }
        if self.branches.get(shows.branch).is_some_and(|branch| branch.leaving) {
            let remedy = format!("{on} is leaving the pool: {behind} has the copy that stays");
            return self.reporter.add(CheckFinding { remedy, ..finding });
        }
        let folder =
            self.branches.get(hides.branch).map_or("".into(), |branch| branch.folder.to_string_lossy());
        let offer = format!("set aside in {behind}/{folder}/kept, until --prune");
        self.fix(finding, hides.branch, offer, |_, daemon| pair.set_aside(&self.branches, daemon, watch))
    }

    /// Tells of a mark that means nothing, and removes it.
    fn mark(&mut self, name: &CStr, copy: usize, is_dir: bool) -> Result<(), Failed> {
        let Some(DirCopy { branch, dir }) = self.levels.last().and_then(|level| level.copies.get(copy))
        else {
            return Ok(());
        };
        let branch = *branch;
        self.reporter.watch.calls(branch);
        match self.marks.meet((branch, dir.as_fd()), name, is_dir, &self.path) {
            Ok(MarkOf::None | MarkOf::Own) => Ok(()),
            Ok(MarkOf::Another(which)) => {
                let finding = self.finding(
                    CheckKind::Mark,
                    format!(
                        "its mark {} on {} is that of another object: a copying program has carried it here",
                        which.to_string_lossy(),
                        self.branch(branch)
                    ),
                    "it means nothing; setfattr -x removes it",
                );
                let on = On::Name(dir.as_fd(), name);
                self.fix(finding, branch, "removed; its value is kept".to_owned(), |branch, _| {
                    fix::remove_mark(on, which, branch, &self.path)
                })
            }
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            Err(error) => self.not_checked(branch, &error),
        }
    }

    /// Tells of marked objects that the daemon does not find by their numbers.
    fn look_for_marked(&mut self, all: bool) -> Result<(), Failed> {
        self.reporter.watch.rests();
        for (path, branch) in self.marks.not_found(all) {
            let text = format!(
                "the pool does not find it by the number of its mark on {}: NFS handles of it are stale",
                self.branch(branch)
            );
            let remedy = "unmount, remove index.redb of the pool's state-dir, and mount: the index is made from the marks";
            self.reporter.add(CheckFinding::new(&path, CheckKind::Index, text, remedy))?;
        }
        match self.marks.unasked() {
            Some(reason) => self.reporter.add(output::not_checked(b"/", &reason)),
            None => Ok(()),
        }
    }

    fn descend(&mut self, name: &CStr, present: &[(usize, Stat)], from: Vec<Vec<u8>>) -> Result<(), Failed> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let (mut copies, mut failed) = (Vec::new(), Vec::new());
        for (copy, _) in present.iter().filter(|(_, stat)| stat.is_dir()) {
            let Some(DirCopy { branch, dir }) = level.copies.get(*copy) else { continue };
            self.reporter.watch.calls(*branch);
            let mounts = self.branches.get(*branch).map_or(Mounts::Stay, |branch| branch.mounts);
            match at::open_dir(dir.as_fd(), name, mounts) {
                Ok(dir) => copies.push(DirCopy { branch: *branch, dir }),
                Err(error) if matches!(error.errno, Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => failed.push((*branch, error)),
            }
        }
        for (branch, error) in failed {
            self.not_checked(branch, &error)?;
        }
        if copies.is_empty() { Ok(()) } else { self.enter(copies, from) }
    }

    /// A finding at the path at hand.
    fn finding(&self, kind: CheckKind, text: String, remedy: &str) -> CheckFinding {
        CheckFinding::new(&self.path, kind, text, remedy)
    }

    /// Reports `finding`; with `--fix` after it was fixed on the branch, or why not.
    fn fix(
        &self,
        mut finding: CheckFinding,
        branch: usize,
        offer: String,
        fix: impl FnOnce(&OpenBranch, &BesideDaemon) -> Fixed,
    ) -> Result<(), Failed> {
        let Some(branch) = self.branches.get(branch) else { return self.reporter.add(finding) };
        if branch.writable {
            finding.fix = Some(offer);
        } else {
            finding.remedy = format!("{}; its branch takes no changes", finding.remedy);
        }
        if let Some(daemon) =
            self.fixes_beside.as_deref().filter(|_| branch.writable && !self.reporter.is_over())
        {
            self.reporter.watch.rests();
            let fixed = daemon.has_the_branches_of_the_start().and_then(|()| fix(branch, daemon));
            finding.fixed = Some(fixed.is_ok());
            if let Err(why) = fixed {
                finding.remedy = why;
            }
        }
        self.reporter.add(finding)
    }

    fn not_checked(&self, branch: usize, error: &fsstack_sys::SysError) -> Result<(), Failed> {
        let branch = self.branch(branch);
        let reason = match error.errno {
            Errno::XDEV => format!("branch {branch}: another file system is mounted there"),
            _ => format!("branch {branch}: {error}"),
        };
        self.reporter.add(output::not_checked(&self.path, &reason))
    }

    /// Path of a branch, in printable form.
    fn branch(&self, branch: usize) -> &str {
        self.branches.get(branch).map_or("", |branch| branch.shown.as_str())
    }

    /// The branch of a copy of the directory at hand.
    fn of_level(&self, copy: usize) -> &str {
        let copy = self.levels.last().and_then(|level| level.copies.get(copy));
        copy.map_or("", |copy| self.branch(copy.branch))
    }
}

fn gone(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    at::stat_by_name_now(dir, name).is_err_and(|error| error.errno == Errno::NOENT)
}

/// Adds the names in `dir`, which is copy number `copy`.
fn list(dir: OwnedFd, copy: usize, names: &mut Vec<ListedName>) -> fsstack_sys::Result<()> {
    let mut entries = Dirents::new(dir, BUFFER);
    while let Some(entry) = entries.next()? {
        if !matches!(entry.name.to_bytes(), b"." | b"..") {
            names.push(ListedName { name: entry.name.to_owned(), copy, kind: entry.kind });
        }
    }
    Ok(())
}
