//! Single operations, and the short sequences by which programs make their writes durable.

use fsstack_lab::needs;

use crate::act::{
    Act, append, chmod, chown, commit, create, exchange, fdatasync, fifo, fsync, fsync_dir, grant, link,
    mkdir, note, remove, rename, rmdir, symlink, synced, truncate, unnamed,
};
use crate::disk::Format::{self, Ext4, Xfs};
use crate::plan::{Begin, BranchPlan, Given, Plan, Then, dir, file};
use crate::run::{is_long, run};

/// New objects go to the branch `takes`; `full` has no space.
#[derive(Clone)]
pub(crate) struct Single {
    pub(crate) name: &'static str,
    pub(crate) given: Vec<Given>,
    pub(crate) acts: Vec<Act>,
    pub(crate) takes: usize,
    full: Option<usize>,
    /// The operation whose changes are durable when it is answered.
    durable: Option<usize>,
    begin: Begin,
}

fn single(name: &'static str, given: Vec<Given>, acts: Vec<Act>) -> Single {
    Single::new(name, given, acts)
}

impl Single {
    /// New objects are placed on the first branch.
    pub(crate) fn new(name: &'static str, given: Vec<Given>, acts: Vec<Act>) -> Self {
        Self { name, given, acts, takes: 0, full: None, durable: None, begin: Begin::Mounted }
    }

    fn durable(self) -> Self {
        self.durable_at(0)
    }

    fn durable_at(self, nth: usize) -> Self {
        Self { durable: Some(nth), ..self }
    }

    fn beginning(self, begin: Begin) -> Self {
        Self { begin, ..self }
    }

    pub(crate) fn placed_on(self, takes: usize) -> Self {
        Self { takes, ..self }
    }

    fn outgrowing(self, full: usize, takes: usize) -> Self {
        Self { full: Some(full), takes, ..self }
    }

    pub(crate) fn plan(self, formats: &[Format], export: bool, then: Then) -> Plan {
        let branch = |(at, format): (usize, &Format)| BranchPlan {
            format: *format,
            takes: at == self.takes,
            full: Some(at) == self.full,
        };
        let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
        let export_text = if export { ", exported" } else { "" };
        Plan {
            name: format!("{} ({}{export_text})", self.name, names.join(", ")),
            branches: formats.iter().enumerate().map(branch).collect(),
            export,
            index_alone: export || is_long(),
            given: self.given,
            acts: self.acts,
            durable: self.durable.into_iter().collect(),
            then,
            begin: self.begin,
        }
    }
}

/// A directory on three branches, with a file in each copy.
pub(crate) fn on_three(name: &str) -> Vec<Given> {
    let at = |n: usize| file(n, &format!("{name}/{n}"), &format!("{name} on {n}"));
    vec![dir(&[0, 1, 2], name), at(0), at(1), at(2)]
}

fn with(mut given: Vec<Given>, more: impl IntoIterator<Item = Given>) -> Vec<Given> {
    given.extend(more);
    given
}

/// Operations that take several steps on several branches.
pub(crate) fn many_steps() -> Vec<Single> {
    [of_directories(), of_files()].concat()
}

fn of_directories() -> Vec<Single> {
    vec![
        single(
            "rename of a directory",
            with(on_three("dir"), [dir(&[1], "new")]),
            vec![rename("dir", "new/name")],
        )
        .durable(),
        single(
            "rename of a directory over an empty one",
            with(on_three("dir"), [dir(&[0, 1, 2], "to")]),
            vec![rename("dir", "to")],
        )
        .durable(),
        single(
            "rename of a directory over an empty one elsewhere",
            vec![dir(&[0, 1], "dir"), file(0, "dir/0", "on 0"), file(1, "dir/1", "on 1"), dir(&[1, 2], "to")],
            vec![rename("dir", "to")],
        )
        .durable(),
        single(
            "rename of a directory over one just removed",
            with(on_three("dir"), [dir(&[0, 1], "to"), file(1, "to/f", "f")]),
            vec![remove("to/f"), rmdir("to"), rename("dir", "to")],
        )
        .durable_at(2),
        single(
            "rename of a directory over one just emptied",
            vec![dir(&[1], "dir"), file(1, "dir/f", "new"), dir(&[0], "to"), file(0, "to/f", "old")],
            vec![remove("to/f"), rename("dir", "to")],
        )
        .durable_at(1),
    ]
}

fn of_files() -> Vec<Single> {
    let film = "m".repeat(400 << 10);
    vec![
        single(
            "rename over a file on a later branch",
            vec![file(0, "from", "from"), file(1, "to", "to")],
            vec![rename("from", "to")],
        )
        .durable(),
        single(
            "rename over a file on an earlier branch",
            vec![file(1, "from", "from"), file(0, "to", "to")],
            vec![rename("from", "to")],
        )
        .durable(),
        single(
            "exchange of files",
            vec![file(0, "a", "this is a"), file(1, "b", "this is b")],
            vec![exchange("a", "b")],
        )
        .durable(),
        single(
            "exchange of a file and a directory",
            with(on_three("dir"), [file(1, "file", "file")]),
            vec![exchange("dir", "file")],
        )
        .durable(),
        single(
            "move",
            vec![dir(&[0], "d"), dir(&[0], "d/e"), file(0, "d/e/film", "film")],
            vec![append("d/e/film", &film), fsync("d/e/film")],
        )
        .outgrowing(0, 2),
        single(
            "move to an earlier branch",
            vec![dir(&[2], "d"), file(2, "d/film", "film")],
            vec![append("d/film", &film), fsync("d/film")],
        )
        .outgrowing(2, 1),
    ]
}

/// Operations of few steps.
pub(crate) fn few_steps() -> Vec<Single> {
    [of_names(), of_attributes()].concat()
}

fn of_attributes() -> Vec<Single> {
    vec![
        single(
            "chown and an ACL",
            on_three("d"),
            vec![chown("d/1", 1000), grant("d/1", 1001), fsync("d/1"), grant("d", 1001), fsync_dir("d")],
        ),
        single(
            "chown of a directory above",
            vec![dir(&[1], "d"), dir(&[1], "d/e")],
            vec![chown("d", 1000), grant("d/e", 1001), create("d/e/f", "new"), fsync("d/e/f")],
        ),
        single(
            "xattr",
            on_three("d"),
            vec![note("d/1", "of a file"), fsync("d/1"), note("d", "of a directory"), fsync_dir("d")],
        ),
        single("chmod of a file", vec![file(1, "f", "f")], vec![chmod("f", 0o600), fsync("f")]),
        single("chmod of a directory", on_three("d"), vec![chmod("d", 0o700), fsync_dir("d")]),
    ]
}

fn of_names() -> Vec<Single> {
    let hidden = || vec![file(0, "f", "shown"), file(1, "f", "older"), file(2, "f", "oldest")];
    vec![
        single(
            "create",
            vec![dir(&[1], "d")],
            vec![create("d/f", "new"), fsync("d/f"), create("d/g", "more")],
        ),
        single("O_TMPFILE and link", vec![dir(&[1], "d")], vec![unnamed("d/f", "new"), fsync("d/f")]),
        single("mkdir", vec![dir(&[1], "d")], vec![mkdir("d/e"), create("d/e/f", "new"), fsync_dir("d/e")]),
        single(
            "skeleton",
            vec![dir(&[2], "d"), dir(&[2], "d/e"), file(2, "d/e/old", "old")],
            vec![create("d/e/new", "new"), fsync("d/e/new")],
        ),
        single(
            "NFS COMMIT",
            vec![dir(&[1], "d"), file(1, "d/f", "f")],
            vec![remove("d/f"), create("d/f", "new"), commit("d/f")],
        ),
        single("link", vec![file(1, "f", "f"), dir(&[0], "d")], vec![link("f", "d/g"), fsync_dir("d")]),
        single(
            "rename",
            vec![dir(&[1], "d"), file(1, "d/f", "f"), file(1, "d/g", "g")],
            vec![rename("d/f", "d/g"), fsync_dir("d")],
        ),
        single(
            "rename into a missing parent",
            vec![file(1, "f", "f"), dir(&[0], "d")],
            vec![rename("f", "d/g"), Act::Syncfs],
        ),
        single("rename with hidden copies", hidden(), vec![rename("f", "g"), fsync_dir("")]),
        single("unlink with hidden copies", hidden(), vec![remove("f"), fsync_dir("")]),
        single("rmdir", vec![dir(&[0, 1, 2], "d")], vec![rmdir("d"), fsync_dir("")]),
        single(
            "fdatasync and O_SYNC",
            vec![file(1, "f", "f"), dir(&[1], "d")],
            vec![rename("f", "d/f"), synced("d/f", " and more"), create("f", "f"), fdatasync("f")],
        ),
        single(
            "symlink",
            vec![dir(&[1], "d")],
            vec![symlink("d/l", "old"), rename("d/l", "d/m"), symlink("d/l", "new"), fsync_dir("d")],
        ),
        single("mknod", vec![dir(&[1], "d")], vec![fifo("d/p"), rename("d/p", "d/q"), fsync_dir("d")]),
        single(
            "truncate",
            vec![file(1, "f", "much of it"), dir(&[1], "d")],
            vec![truncate("f", 4), fsync("f"), append("f", " more"), rename("f", "d/f"), fsync("d/f")],
        ),
    ]
}

/// Numbers are assigned for the first time.
fn beginnings() -> Vec<Single> {
    let given = || {
        vec![dir(&[0, 1], "d"), file(0, "d/f", "f"), file(1, "d/g", "g"), dir(&[2], "e"), file(2, "e/h", "h")]
    };
    vec![
        single("first mount", given(), vec![Act::Look]).beginning(Begin::Fresh),
        single("branch add", given(), vec![Act::Join(2), Act::Look, create("d/new", "new"), fsync("d/new")])
            .beginning(Begin::Without(2))
            .placed_on(2),
    ]
}

/// The index is reopened or rebuilt; it marks the branches, and records moves and new copies.
fn of_the_index() -> Vec<Single> {
    let film = "f".repeat(400 << 10);
    let given = || {
        vec![
            dir(&[0, 1], "d"),
            file(0, "d/moved", "moved"),
            file(0, "d/film", "film"),
            file(1, "d/g", "g"),
            dir(&[0], "e"),
        ]
    };
    let acts = || vec![Act::Look, append("d/film", &film), create("e/new", "new"), fsync("e/new")];
    let over = |name, begin| single(name, given(), acts()).outgrowing(0, 2).beginning(begin);
    vec![over("index opened again", Begin::Again), over("index lost", Begin::Lost)]
}

/// Sequences by which programs make their writes durable.
pub(crate) fn programs() -> Vec<Single> {
    vec![
        single(
            "write aside and rename over, one branch",
            vec![file(0, "f", "old")],
            vec![create("tmp", "new"), fsync("tmp"), rename("tmp", "f"), append("f", " more"), fsync("f")],
        ),
        single(
            "write aside and rename over, two branches",
            vec![file(1, "f", "old")],
            vec![create("tmp", "new"), fsync("tmp"), rename("tmp", "f"), append("f", " more"), fsync("f")],
        ),
        single(
            "write aside and rename over, the old one first",
            vec![file(0, "f", "old")],
            vec![create("tmp", "new"), fsync("tmp"), rename("tmp", "f"), append("f", " more"), fsync("f")],
        )
        .placed_on(1),
        single(
            "a log is begun anew",
            vec![file(1, "log", "old")],
            vec![rename("log", "log.1"), create("log", "new"), fsync("log")],
        ),
        single(
            "a renamed file's directory goes and comes",
            vec![dir(&[1], "d"), dir(&[1], "e"), file(1, "d/f", "old")],
            vec![rename("d/f", "e/f"), rmdir("d"), mkdir("d"), create("d/f", "new"), fsync("d/f")],
        ),
        single(
            "a tree goes and comes",
            vec![dir(&[0, 1], "d"), file(0, "d/f", "f"), file(1, "d/g", "g")],
            vec![
                remove("d/f"),
                remove("d/g"),
                rmdir("d"),
                mkdir("d"),
                create("d/secret", "secret"),
                fsync("d/secret"),
            ],
        )
        .placed_on(2),
    ]
}

fn all(singles: Vec<Single>, formats: &[Format], export: bool) -> Vec<Plan> {
    singles.into_iter().map(|single| single.plan(formats, export, Then::Mount)).collect()
}

#[test]
fn many_steps_on_ext4() {
    needs!(root(), loops());
    run("many steps, ext4", all(many_steps(), &[Ext4; 3], true));
}

#[test]
fn many_steps_on_xfs() {
    needs!(root(), loops());
    run("many steps, XFS", all(many_steps(), &[Xfs, Ext4, Xfs], false));
}

#[test]
fn few_steps_on_ext4() {
    needs!(root(), loops());
    let singles = [few_steps(), programs(), beginnings(), of_the_index()].concat();
    // Without an index only the branches' ids preserve the numbers.
    let plans = [all(singles, &[Ext4; 3], true), all(beginnings(), &[Ext4; 3], false)].concat();
    run("few steps, ext4", plans);
}
