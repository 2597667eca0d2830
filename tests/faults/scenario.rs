//! Scenarios for failing calls: a prepared pool of three branches, and one operation on it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink as symlink_on};
use std::path::Path;

use fsstack_engine::Caller;
use fsstack_engine::jobs::{DrainOrder, HiddenCopies, Manner};
use fsstack_engine::ops::{Change, New};
use fsstack_sys::OFlags;
use fsstack_sys::at::RenameFlags;

use crate::check::{Entry, TestBed, Tree};
use crate::engine::{Answer, Engine};

/// One operation on a prepared pool.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Fills the branches.
    prepare: fn(&[&Path; 3]),
    pub(crate) act: fn(&Engine) -> Answer<()>,
    /// Leftovers that an error may cause, other than the trees before and after.
    pub(crate) leaves: Leaves,
}

/// Effects of an operation that returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// All or nothing.
    Nothing,
    /// A partly written file, as after any failed write.
    HalfWritten(&'static str),
    /// The file under its new name, which may have been another's, and still under this one.
    BothNames(&'static str),
}

fn path(path: &str) -> &Path {
    Path::new(path)
}

fn put(branch: &Path, name: &str, text: &str) {
    let file = branch.join(name);
    put_dir(branch, Path::new(name).parent().unwrap().to_str().unwrap());
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
}

/// Makes a directory with unusual attributes: a mode and an xattr of its own.
fn put_dir(branch: &Path, name: &str) {
    for dir in Path::new(name).ancestors().collect::<Vec<_>>().into_iter().rev() {
        if dir.as_os_str().is_empty() || branch.join(dir).exists() {
            continue;
        }
        let dir = branch.join(dir);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o751)).unwrap();
        rustix::fs::setxattr(&dir, c"user.kept", b"yes", rustix::fs::XattrFlags::empty()).unwrap();
    }
}

fn change_mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}

fn rename(pool: &Engine, from: &str, to: &str) -> Answer<()> {
    pool.rename(path(from), path(to), RenameFlags::empty())
}

fn exchange(pool: &Engine, from: &str, to: &str) -> Answer<()> {
    pool.rename(path(from), path(to), RenameFlags::EXCHANGE)
}

impl Scenario {
    /// The prepared pool.
    pub(crate) fn test_bed(&self) -> TestBed {
        TestBed::fresh(self.prepare)
    }

    /// Fills branches for a mount by the caller.
    pub(crate) fn prepare(&self, branches: &[&Path; 3]) {
        (self.prepare)(branches);
    }

    /// Like [`Self::prepare`], of branches that are emptied first. They have directories only.
    pub(crate) fn prepare_anew(&self, branches: &[&Path; 3]) {
        for entry in branches.iter().flat_map(|branch| fs::read_dir(branch).unwrap()) {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        self.prepare(branches);
    }

    /// True if an error may leave `seen`.
    pub(crate) fn between(&self, before: &Tree, after: &Tree, seen: &Tree) -> bool {
        let but = |tree: &Tree, name: &str| {
            let mut tree = tree.clone();
            tree.remove(path(name));
            tree
        };
        match self.leaves {
            Leaves::Nothing => false,
            Leaves::HalfWritten(name) => {
                seen.contains_key(path(name)) && but(seen, name) == but(before, name)
            }
            Leaves::BothNames(name) => {
                let text = |tree: &Tree, name: &Path| match tree.get(name) {
                    Some(Entry::File { text, .. }) => Some(text.clone()),
                    Some(Entry::Dir { .. } | Entry::Symlink(_)) | None => None,
                };
                let as_after = after.keys().all(|name| text(seen, name) == text(after, name));
                as_after && text(seen, path(name)) == text(before, path(name))
            }
        }
    }
}

/// The scenario called `name`.
pub(crate) fn named(name: &str) -> &'static Scenario {
    SCENARIOS
        .iter()
        .chain([
            &MOVE,
            &MOVE_WITH_ROOM,
            &DRAIN,
            &DRAIN_FILM,
            &DRAIN_LINKS,
            &DRAIN_LINKED_FILES,
            &DRAIN_FILES,
            &DRAIN_HIDDEN,
        ])
        .find(|scenario| scenario.name == name)
        .unwrap()
}

/// The file that is moved.
pub(crate) const FILM: &str = "d/deep/er/film";

/// Content of a file that is moved, and a later write for which its branch has no room.
pub(crate) const MOVED: &str = text::<{ 100 << 10 }>(&[b'm'; 100 << 10]);
pub(crate) const MOVED_MORE: &str = text::<{ 150 << 10 }>(&[b'n'; 150 << 10]);

const fn text<const LEN: usize>(bytes: &[u8; LEN]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => "",
    }
}

/// A write finds the branch full, and the file is moved; for branches prepared for that.
pub(crate) static MOVE: Scenario = Scenario {
    name: "move",
    prepare: |branches| put(branches[0], FILM, MOVED),
    act: |pool| pool.write(path(FILM), Some(MOVED.len() as u64), MOVED_MORE.as_bytes()),
    leaves: Leaves::HalfWritten(FILM),
};

/// An allocation exceeds the branch's free space, of which some is left.
pub(crate) static MOVE_WITH_ROOM: Scenario = Scenario {
    name: "move with room",
    prepare: |branches| put(branches[0], FILM, MOVED),
    act: |pool| {
        let film = pool.open(path(FILM), OFlags::RDWR)?;
        // FALLOC_FL_KEEP_SIZE
        let taken = pool.union.fallocate(film, 0x01, 0, 300 << 10, Caller::DAEMON);
        pool.union.release(film);
        taken.map_err(|error| error.errno())
    },
    leaves: Leaves::Nothing,
};

/// Empties the first branch of a symbolic link, a fifo and a directory.
pub(crate) static DRAIN: Scenario = Scenario {
    name: "drain",
    prepare: |branches| {
        put_dir(branches[0], "d");
        symlink_on("target", branches[0].join("d/link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, branches[0].join("d/fifo"), rustix::fs::Mode::RUSR).unwrap();
    },
    act: drain,
    leaves: Leaves::Nothing,
};

/// Empties the first branch of a file.
pub(crate) static DRAIN_FILM: Scenario = Scenario {
    name: "drain film",
    prepare: |branches| put(branches[0], FILM, MOVED),
    act: drain,
    leaves: Leaves::Nothing,
};

/// The names of each file of [`DRAIN_LINKS`], in two directories. Its content is the first one.
pub(crate) const LINKS: &[&[&str]] = &[&["d/one", "d/two", "e/three"]];

/// The first branch is emptied of a file with several hard links.
pub(crate) static DRAIN_LINKS: Scenario = Scenario {
    name: "drain links",
    prepare: |branches| put_linked(branches, LINKS),
    act: drain,
    leaves: Leaves::Nothing,
};

/// Like [`LINKS`], of [`DRAIN_LINKED_FILES`]. They move as one batch, with a file of one name in whichever directory is listed last.
pub(crate) const LINKED_FILES: &[&[&str]] =
    &[&["d/one", "d/two", "e/three"], &["e/four", "d/five"], &["d/alone"], &["e/alone"]];

/// The first branch is emptied of small files, some of which have several hard links.
pub(crate) static DRAIN_LINKED_FILES: Scenario = Scenario {
    name: "drain linked files",
    prepare: |branches| put_linked(branches, LINKED_FILES),
    act: drain,
    leaves: Leaves::Nothing,
};

fn put_linked(branches: &[&Path; 3], files: &[&[&str]]) {
    put_dir(branches[0], "d");
    put_dir(branches[0], "e");
    for names in files {
        put(branches[0], names[0], names[0]);
        for name in &names[1..] {
            fs::hard_link(branches[0].join(names[0]), branches[0].join(name)).unwrap();
        }
    }
}

/// The files of [`DRAIN_FILES`], which move as one batch. Each has its path as content.
pub(crate) const FILES: [&str; 3] = ["d/one", "d/two", "d/three"];

/// The first branch is emptied of small files.
pub(crate) static DRAIN_FILES: Scenario = Scenario {
    name: "drain files",
    prepare: |branches| FILES.iter().for_each(|name| put(branches[0], name, name)),
    act: drain,
    leaves: Leaves::Nothing,
};

/// Paths of a file that is hidden by the first branch's, and of one that is not; on the second branch, which is emptied.
pub(crate) const HIDDEN: &str = "d/hidden";
pub(crate) const NOT_HIDDEN: &str = "d/other";

/// The second branch is emptied, with what the first one hides set aside.
pub(crate) static DRAIN_HIDDEN: Scenario = Scenario {
    name: "drain hidden",
    prepare: |branches| {
        put(branches[0], HIDDEN, "shown");
        put(branches[1], HIDDEN, HIDDEN);
        put(branches[1], NOT_HIDDEN, NOT_HIDDEN);
    },
    act: |pool| drain_of(pool, 1, HiddenCopies::Move),
    leaves: Leaves::Nothing,
};

fn drain(pool: &Engine) -> Answer<()> {
    drain_of(pool, 0, HiddenCopies::Stop)
}

fn drain_of(pool: &Engine, at: usize, hidden: HiddenCopies) -> Answer<()> {
    let from = pool.union.pool().branches[at].ix;
    let order = DrainOrder { from, to: Vec::new(), hidden, manner: Manner::default(), window: None };
    pool.union.start_drain(order).unwrap();
    while pool.union.jobs().iter().any(|job| !job.state.is_over()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// A scenario that does everything or nothing.
const fn whole(name: &'static str, prepare: fn(&[&Path; 3]), act: fn(&Engine) -> Answer<()>) -> Scenario {
    Scenario { name, prepare, act, leaves: Leaves::Nothing }
}

fn dir_on_the_second(branches: &[&Path; 3]) {
    put(branches[1], "d/old", "old");
}

fn dir_on_three(branches: &[&Path; 3]) {
    for (branch, name) in branches.iter().zip(["dir/one", "dir/two", "dir/sub/three"]) {
        put(branch, name, name);
    }
}

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    whole("create", dir_on_the_second, |pool| pool.create(path("d/new"), 0o644)),
    whole("mkdir", dir_on_the_second, |pool| pool.make(path("d/new"), New::Dir(0o755))),
    whole("symlink", dir_on_the_second, |pool| pool.make(path("d/new"), New::Symlink(c"far/away"))),
    whole(
        "link",
        |branches| {
            put(branches[1], "file", "file");
            put_dir(branches[0], "d");
            symlink_on("x", branches[2].join("other")).unwrap();
        },
        |pool| pool.link(path("file"), path("d/name")),
    ),
    whole(
        "skeleton",
        |branches| put(branches[2], "deep/deeper/old", "old"),
        |pool| pool.create(path("deep/deeper/new"), 0o600),
    ),
    whole(
        "rename_within_a_branch",
        |branches| {
            put(branches[1], "d/from", "from");
            put(branches[1], "d/to", "to");
        },
        |pool| rename(pool, "d/from", "d/to"),
    ),
    whole(
        "rename_into_a_missing_parent",
        |branches| {
            put(branches[1], "from", "from");
            put(branches[0], "d/other", "other");
        },
        |pool| rename(pool, "from", "d/to"),
    ),
    Scenario {
        name: "rename_over_a_file_on_an_earlier_branch",
        prepare: |branches| {
            put(branches[1], "from", "from");
            put(branches[0], "to", "to");
        },
        act: |pool| rename(pool, "from", "to"),
        leaves: Leaves::BothNames("from"),
    },
    whole(
        "rename_over_a_file_on_a_later_branch",
        |branches| {
            put(branches[1], "from", "from");
            put(branches[2], "to", "to");
        },
        |pool| rename(pool, "from", "to"),
    ),
    whole(
        "rename_of_a_file_with_a_hidden_copy",
        |branches| {
            put(branches[0], "from", "from");
            put(branches[2], "from", "an older copy");
            put(branches[1], "to", "to");
            put(branches[2], "to", "an older copy");
        },
        |pool| rename(pool, "from", "to"),
    ),
    whole(
        "rename_a_directory_of_three_branches",
        |branches| {
            dir_on_three(branches);
            put_dir(branches[1], "new");
        },
        |pool| rename(pool, "dir", "new/name"),
    ),
    whole(
        "rename_over_an_empty_directory_of_three_branches",
        |branches| {
            dir_on_three(branches);
            branches.iter().for_each(|branch| put_dir(branch, "to"));
        },
        |pool| rename(pool, "dir", "to"),
    ),
    whole(
        "rename_over_an_empty_directory_of_the_last_branch",
        |branches| {
            dir_on_three(branches);
            put_dir(branches[0], "new");
            put_dir(branches[2], "new/to");
        },
        |pool| rename(pool, "dir", "new/to"),
    ),
    whole(
        "rename_over_an_empty_directory_elsewhere",
        |branches| {
            put(branches[0], "dir/one", "one");
            put(branches[1], "dir/two", "two");
            put_dir(branches[1], "to");
            put_dir(branches[2], "to");
        },
        |pool| rename(pool, "dir", "to"),
    ),
    whole(
        "exchange_files_of_two_branches",
        |branches| {
            put(branches[0], "a", "this is a");
            put(branches[1], "b", "this is b");
        },
        |pool| exchange(pool, "a", "b"),
    ),
    whole(
        "exchange_a_file_and_a_directory",
        |branches| {
            dir_on_three(branches);
            put(branches[1], "file", "file");
        },
        |pool| exchange(pool, "dir", "file"),
    ),
    whole(
        "unlink_with_duplicates",
        |branches| {
            branches
                .iter()
                .zip(["first", "second", "third"])
                .for_each(|(branch, text)| put(branch, "file", text));
        },
        |pool| pool.unlink(path("file")),
    ),
    whole(
        "rmdir_of_three_branches",
        |branches| branches.iter().for_each(|branch| put_dir(branch, "dir")),
        |pool| pool.rmdir(path("dir")),
    ),
    whole("chmod_a_directory_of_three_branches", dir_on_three, |pool| {
        pool.setattr(path("dir"), change_mode(0o700))
    }),
    whole("chmod_a_file", dir_on_the_second, |pool| pool.setattr(path("d/old"), change_mode(0o600))),
    whole("truncate", dir_on_the_second, |pool| {
        pool.setattr(path("d/old"), Change { size: Some(1), ..Change::default() })
    }),
    whole("write", dir_on_the_second, |pool| pool.write(path("d/old"), Some(1), b"longer than it was")),
    Scenario {
        name: "copy_range",
        prepare: |branches| {
            put(branches[0], "from", &"0123456789".repeat(1000));
            put(branches[1], "to", "to");
        },
        act: |pool| pool.copy_range(path("from"), path("to")),
        leaves: Leaves::HalfWritten("to"),
    },
];
