//! A scenario: initial content of the disks, the pool, and a program's operations.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_engine::settings::Settings;
use fsstack_pool::{BranchMode, BranchSpec};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use crate::act::Act;
use crate::disk::Format;
use crate::engine::{Engine, settings};
use crate::model::{Node, Object, Thing, Tree};

/// An initial object: its disks and path.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) disks: Vec<usize>,
    pub(crate) path: PathBuf,
    mode: u32,
    /// `None` for a directory, and a further name.
    text: Option<String>,
    /// The first name of the file, if this is a further one.
    link: Option<PathBuf>,
}

impl Given {
    pub(crate) fn is_dir(&self) -> bool {
        self.text.is_none() && self.link.is_none()
    }

    /// The first name of the file, if this is a further one.
    pub(crate) fn first_name(&self) -> Option<&PathBuf> {
        self.link.as_ref()
    }

    /// The shell command for it, run beside the branches.
    fn typed(&self) -> String {
        let Self { disks, path, mode, text, link } = self;
        let path = path.display();
        let one = |disk: &usize| match (text, link) {
            (None, Some(link)) => format!("ln b{disk}/{} b{disk}/{path}", link.display()),
            (Some(text), _) => format!("printf '{text}' > b{disk}/{path}; chmod {mode:o} b{disk}/{path}"),
            (None, None) => format!("mkdir -m {mode:o} b{disk}/{path}"),
        };
        disks.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

pub(crate) fn dir(disks: &[usize], path: &str) -> Given {
    Given { disks: disks.to_vec(), path: path.into(), mode: 0o755, text: None, link: None }
}

pub(crate) fn file(disk: usize, path: &str, text: &str) -> Given {
    Given { disks: vec![disk], path: path.into(), mode: 0o640, text: Some(text.to_owned()), link: None }
}

/// A further name of a file that is given before it.
pub(crate) fn hard_link(disk: usize, first: &str, path: &str) -> Given {
    Given { link: Some(first.into()), text: None, ..file(disk, path, "") }
}

/// One branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchPlan {
    pub(crate) format: Format,
    /// True if new objects are placed there.
    pub(crate) takes: bool,
    /// True if only a few KiB are free.
    pub(crate) full: bool,
}

/// A scenario.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    /// In the pool's order.
    pub(crate) branches: Vec<BranchPlan>,
    pub(crate) export: bool,
    /// True if the index's disk is also cut between two syncs.
    pub(crate) index_alone: bool,
    pub(crate) given: Vec<Given>,
    pub(crate) acts: Vec<Act>,
    /// Operations that are durable when they are answered: renames over several branches.
    pub(crate) durable: Vec<usize>,
    /// Steps after the cut.
    pub(crate) then: Then,
    /// Steps before the first operation.
    pub(crate) begin: Begin,
}

/// State of the pool before the first operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Mounted, not for the first time.
    #[default]
    Mounted,
    /// Never mounted before.
    Fresh,
    /// Mounted without that branch, which was never in it.
    Without(usize),
    /// Mounted before, with a file moved, and not mounted now.
    Again,
    /// Like [`Self::Again`], with its index lost.
    Lost,
}

/// Steps after the cut.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Then {
    /// The pool is mounted.
    #[default]
    Mount,
    /// Mounted with its branches in reverse order, and then as before.
    Reversed,
    /// Mounted without a branch, changed, and then mounted with all.
    Away(usize, Meanwhile),
}

/// Changes of a pool without one of its branches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meanwhile {
    /// Every file gets another name.
    Rename,
    /// The first name of every file is changed.
    RenameOne,
    /// Every file is removed.
    Remove,
    /// The first name of every file is removed.
    RemoveOne,
    /// Every file gets fewer rights.
    Restrict,
    /// Every directory gets a file.
    Fill,
}

impl Then {
    /// The shell command for it.
    pub(crate) fn typed(self) -> String {
        match self {
            Self::Mount => String::new(),
            Self::Reversed => "mount with the branches in reverse order, umount".to_owned(),
            Self::Away(at, meanwhile) => {
                let done = match meanwhile {
                    Meanwhile::Rename => "mv f f.new for every file",
                    Meanwhile::RenameOne => "mv f f.new for the first name of every file",
                    Meanwhile::Remove => "rm every file",
                    Meanwhile::RemoveOne => "rm the first name of every file",
                    Meanwhile::Restrict => "chmod 600 every file",
                    Meanwhile::Fill => "touch a new file in every directory",
                };
                format!("mount without branch {at}, {done}, umount")
            }
        }
    }
}

/// Space left on a full disk.
const ROOM: u64 = 64 << 10;
/// Name in the root of a file that no operation uses.
pub(crate) const BALLAST: &str = "ballast";

impl Plan {
    /// Branch specifications of the pool, with its branches mounted at these directories.
    pub(crate) fn specs(&self, paths: &[PathBuf], without: Option<usize>) -> Vec<BranchSpec> {
        let all = self.branches.iter().zip(paths).enumerate().filter(|(at, _)| Some(*at) != without);
        let spec = |(_, (branch, path)): (usize, (&BranchPlan, &PathBuf))| BranchSpec {
            mode: if branch.takes { BranchMode::ReadWrite } else { BranchMode::NoCreate },
            ..BranchSpec::new(path.clone())
        };
        all.map(spec).collect()
    }

    /// Shell commands before the first operation.
    pub(crate) fn typed(&self) -> Vec<String> {
        let branch = |(at, branch): (usize, &BranchPlan)| {
            let full = if branch.full { ", all but 64 KiB of it allocated" } else { "" };
            format!("# b{at} is {}{full}", branch.format.name())
        };
        let mut lines: Vec<String> = self.branches.iter().enumerate().map(branch).collect();
        let mut given: Vec<&Given> = self.given.iter().collect();
        given.sort_by_key(|given| given.path.components().count());
        lines.extend(given.into_iter().map(Given::typed));
        let without = if let Begin::Without(at) = self.begin { Some(at) } else { None };
        let branches = self.branches.iter().enumerate().filter(|(at, _)| Some(*at) != without);
        let branches = branches.map(|(at, branch)| format!("b{at}{}", if branch.takes { "" } else { "=NC" }));
        let (branches, export) =
            (branches.collect::<Vec<_>>().join(":"), if self.export { ",nfs-export" } else { "" });
        lines.push(match self.begin {
            Begin::Fresh | Begin::Without(_) => "# the pool is new".to_owned(),
            Begin::Mounted => "# the pool was mounted before".to_owned(),
            Begin::Again => "# the pool was mounted before, and d/moved outgrew its branch".to_owned(),
            Begin::Lost => {
                "# the pool was mounted before, d/moved outgrew its branch, and the index was removed"
                    .to_owned()
            }
        });
        lines.push(format!(
            "mount -t fsstack -o create=ff,minfreespace=0,write-path=stacked{export} {branches} pool; cd pool"
        ));
        lines
    }

    /// Mounts it with its branches in reverse order.
    pub(crate) fn mount_reversed(&self, paths: &[PathBuf], state: &Path) -> Engine {
        let specs = self.specs(paths, None).into_iter().rev().collect();
        Engine::of(specs, self.settings(state))
    }

    fn settings(&self, state: &Path) -> Settings {
        Settings {
            nfs_export: self.export,
            state_dir: Some(state.to_owned()),
            recheck: Duration::ZERO,
            ..settings("ff")
        }
    }

    /// Mounts it.
    pub(crate) fn mount(&self, paths: &[PathBuf], state: &Path, without: Option<usize>) -> Engine {
        Engine::of(self.specs(paths, without), self.settings(state))
    }

    /// Makes the initial objects on the disks.
    pub(crate) fn prepare(&self, paths: &[PathBuf]) {
        for (at, given) in self.given.iter().enumerate() {
            for disk in &given.disks {
                let path = paths[*disk].join(&given.path);
                match (&given.text, &given.link) {
                    (None, Some(link)) => {
                        fs::hard_link(paths[*disk].join(link), &path).unwrap();
                        continue;
                    }
                    (Some(text), _) => fs::write(&path, text).unwrap(),
                    (None, None) => fs::create_dir(&path).unwrap(),
                }
                fs::set_permissions(&path, PermissionsExt::from_mode(given.mode)).unwrap();
                setxattr(&path, OBJECT, format!("{}", at + 1).as_bytes(), XattrFlags::empty()).unwrap();
            }
        }
        for (_, path) in self.branches.iter().zip(paths).filter(|(branch, _)| branch.full) {
            fill(path);
        }
    }

    /// Number of operations answered before any number was shown.
    pub(crate) fn acts_unseen(&self) -> usize {
        let check = self.acts.iter().position(|act| *act == Act::Look);
        match self.begin {
            Begin::Mounted | Begin::Again | Begin::Lost => 0,
            Begin::Fresh | Begin::Without(_) => check.map_or(self.acts.len(), |look| look + 1),
        }
    }

    /// The initial tree. Of files with one name the first counts.
    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let turn = |given: &Given| given.disks.first().copied();
        let mut all: Vec<(Object, &Given)> =
            self.given.iter().enumerate().map(|(at, given)| (at + 1, given)).collect();
        all.sort_by_key(|(object, given)| (given.path.components().count(), turn(given), *object));
        for (object, given) in all {
            if let Some(link) = &given.link {
                let known = self.given.iter().position(|first| first.path == *link);
                tree.names.extend(known.map(|first| (given.path.clone(), first + 1)));
                continue;
            }
            let thing =
                given.text.clone().map_or(Thing::Dir, |text| Thing::File { synced: text.len(), text });
            tree.add(&given.path, object, Node::new(thing, given.mode));
        }
        tree
    }

    /// Objects that were not moved from a branch that was emptied.
    pub(crate) fn undrained(&self, paths: &[PathBuf]) -> Vec<PathBuf> {
        let drained =
            self.acts.iter().filter_map(|act| if let Act::Drain(at) = act { Some(*at) } else { None });
        let given = |at: usize| self.given.iter().map(move |given| paths[at].join(&given.path));
        drained.flat_map(given).filter(|path| path.exists()).collect()
    }

    /// True if an operation renames something over a directory that was there from the start.
    pub(crate) fn replaces_a_directory(&self) -> bool {
        let is_given = |path: &Path| self.given.iter().any(|given| given.is_dir() && given.path == path);
        self.acts.iter().any(|act| matches!(act, Act::Rename(_, to) if is_given(to)))
    }

    /// True if the plan has files with several names from the start.
    pub(crate) fn has_links(&self) -> bool {
        self.given.iter().any(|given| given.link.is_some())
    }

    /// Files that are too large for their branch, and still there.
    pub(crate) fn unmoved(&self, paths: &[PathBuf], tree: &Tree) -> Vec<PathBuf> {
        let is_large = |object| matches!(&tree.nodes[object].thing, Thing::File { text, .. } if text.len() as u64 > ROOM);
        let large = tree.names.iter().filter(|(_, object)| is_large(object)).map(|(path, _)| path);
        let full: Vec<_> = self.branches.iter().zip(paths).filter(|(branch, _)| branch.full).collect();
        large.filter(|path| full.iter().any(|(_, root)| root.join(path).exists())).cloned().collect()
    }

    /// True if a file of this name is hidden from the start.
    pub(crate) fn is_hidden(&self, path: &Path) -> bool {
        let files = self.given.iter().filter(|given| given.path == path && given.text.is_some());
        files.count() > 1
    }
}

/// Attribute that identifies an initial object.
pub(crate) const OBJECT: &std::ffi::CStr = c"user.object";

fn fill(root: &Path) {
    let ballast = fs::File::create(root.join(BALLAST)).unwrap();
    let free = || {
        let stat = rustix::fs::statvfs(root).unwrap();
        stat.f_bavail * stat.f_frsize
    };
    let mut at = 0;
    let mut piece = free();
    while piece > 4096 {
        let wanted = piece.min(free().saturating_sub(ROOM)) & !4095;
        if wanted == 0 || fallocate(&ballast, FallocateFlags::empty(), at, wanted).is_err() {
            piece /= 2;
            continue;
        }
        at += wanted;
    }
    ballast.sync_all().unwrap();
}
