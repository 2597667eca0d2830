//! Real programs on a tree of source files: what users do in a pool, one shell command each, in an order where each
//! uses the results of earlier ones.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::needs::{self, Skip};
use crate::shell::command;

/// Files in a directory of the tree.
const FILES_A_DIR: usize = 20;
/// Directories in a directory.
const DIRS_A_DIR: usize = 10;
/// One in this many files has the word that grep(1) looks for, is executable, has a symbolic link beside it.
const WITH_WORD: usize = 50;
const EXECUTABLE: usize = 40;
const LINKED: usize = 100;
/// Smallest file, and how often that may be doubled: the mean is 5 KiB, the largest 32 KiB.
const LEAST: u64 = 64;
const DOUBLINGS: u64 = 9;
/// Time limit of a program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);

/// A program, run by sh(1) in the directory that has the tree.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in a table.
    pub name: &'static str,
    line: &'static str,
    /// Its output is the same on every file system.
    pub is_comparable: bool,
}

/// The programs, in order.
pub const PROGRAMS: &[Program] = &[
    Program { name: "tar -x", line: "tar -xf \"$ARCHIVE\"", is_comparable: true },
    Program { name: "find", line: "find tree -type f -printf '%p %s %n\\n'", is_comparable: true },
    // Blocks and sizes of directories are the branch's own.
    Program { name: "du", line: "du -s tree", is_comparable: false },
    Program { name: "grep -r", line: "grep -r needle tree", is_comparable: true },
    Program { name: "cp -a", line: "cp -a tree copy", is_comparable: true },
    Program {
        name: "git init, add",
        line: "git init -q -b main tree && git -C tree add .",
        is_comparable: true,
    },
    Program {
        name: "git commit",
        line: "git -C tree commit -qm all && git -C tree rev-parse HEAD",
        is_comparable: true,
    },
    Program { name: "git status", line: "git -C tree status --short", is_comparable: true },
    Program { name: "rsync -a", line: "rsync -a copy/ mirror/", is_comparable: true },
    Program { name: "rm -rf", line: "rm -rf tree copy mirror", is_comparable: true },
];

/// Programs that a system may lack.
///
/// # Errors
/// One is not installed.
pub fn installed() -> Result<(), Skip> {
    ["tar", "git", "rsync"].into_iter().try_for_each(needs::program)
}

/// An archive of a generated tree, in memory, the same for the same number of files.
#[derive(Debug)]
pub struct Archive {
    dir: TempDir,
}

/// Output and time of a program.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its output, by lines, sorted: file systems list names in different orders.
    pub said: Vec<String>,
    /// From its start to its end; timed by the shell.
    pub seconds: f64,
}

impl Archive {
    /// Makes a tree of `files` regular files and packs it.
    ///
    /// # Errors
    /// The directory for it cannot be written, or tar(1) failed.
    pub fn of(files: usize) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("fsstack-programs-").tempdir_in("/dev/shm")?;
        let tree = dir.path().join("tree");
        (0..files).try_for_each(|n| generate(&tree, n)).context("generating a tree")?;
        command("tar")
            .args(["-cf", "archive", "--sort=name", "tree"])
            .dir(dir.path())
            .limit(PROGRAM_TIMEOUT)
            .run()?;
        fs::remove_dir_all(&tree)?;
        Ok(Self { dir })
    }

    /// The archive file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("archive")
    }

    /// Runs `program` in `at`.
    ///
    /// # Errors
    /// It failed, or took longer than ten minutes.
    pub fn run(&self, program: Program, at: &Path) -> Result<Ran> {
        let says = self.dir.path().join("says");
        let script = format!(
            "began=$(date +%s%N); {{ {}; }} > \"$SAYS\" && echo $(($(date +%s%N) - began))",
            program.line
        );
        let mut run = command("sh").args(["-c", &script]).dir(at).limit(PROGRAM_TIMEOUT);
        run = run.env("ARCHIVE", self.path()).env("SAYS", &says).env("HOME", self.dir.path());
        for (name, value) in GIT {
            run = run.env(name, value);
        }
        let done = run.run().with_context(|| format!("{} in {}", program.name, at.display()))?;
        let nanoseconds: f64 = done.stdout.trim().parse().context("no time in the output")?;
        let mut said: Vec<String> = fs::read_to_string(&says)?.lines().map(str::to_owned).collect();
        said.sort_unstable();
        Ok(Ran { said, seconds: nanoseconds / 1e9 })
    }
}

/// Settings that make a commit the same everywhere, and keep git from working in the background.
const GIT: &[(&str, &str)] = &[
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_COUNT", "2"),
    ("GIT_CONFIG_KEY_0", "gc.auto"),
    ("GIT_CONFIG_VALUE_0", "0"),
    ("GIT_CONFIG_KEY_1", "maintenance.auto"),
    ("GIT_CONFIG_VALUE_1", "false"),
    ("GIT_AUTHOR_NAME", "lab"),
    ("GIT_AUTHOR_EMAIL", "lab@localhost"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_NAME", "lab"),
    ("GIT_COMMITTER_EMAIL", "lab@localhost"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];

/// Compares what programs left in two directories by diff(1), and their repositories by git-fsck(1).
///
/// # Errors
/// They differ: the first differences.
pub fn compare(one: &Path, other: &Path) -> Result<()> {
    let diff = command("diff").args(["-r", "--no-dereference", "--exclude=.git"]).arg(one).arg(other);
    let found = diff.limit(PROGRAM_TIMEOUT).output()?;
    let first: Vec<&str> = found.stdout.lines().chain(found.stderr.lines()).take(5).collect();
    ensure!(found.code == 0, "{} and {} differ: {}", one.display(), other.display(), first.join("; "));
    for at in [one, other] {
        let tree = at.join("tree");
        if tree.join(".git").exists() {
            command("git").arg("-C").arg(&tree).args(["fsck", "--strict"]).limit(PROGRAM_TIMEOUT).run()?;
        }
    }
    Ok(())
}

/// Makes file `n` of the tree, with its directory, and its link if it has one.
fn generate(tree: &Path, n: usize) -> Result<()> {
    let dir = n / FILES_A_DIR;
    let dir = tree.join(format!("unit-{}", dir / DIRS_A_DIR)).join(format!("part-{}", dir % DIRS_A_DIR));
    if n.is_multiple_of(FILES_A_DIR) {
        fs::create_dir_all(&dir)?;
    }
    let file = dir.join(format!("source-{n}.c"));
    fs::write(&file, content(n)?)?;
    if n.is_multiple_of(EXECUTABLE) {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    if n.is_multiple_of(LINKED) {
        symlink(format!("source-{n}.c"), dir.join(format!("link-{n}")))?;
    }
    Ok(())
}

/// Lines that compress about as well as sources do, no two files alike.
fn content(n: usize) -> Result<String> {
    let mut random = Random(u64::try_from(n)?);
    let least = LEAST << (random.next() % DOUBLINGS);
    let size = usize::try_from(least + random.next() % least)?;
    let mut text = format!("/* file {n} */\n");
    if n.is_multiple_of(WITH_WORD) {
        text += "/* the needle is here */\n";
    }
    while text.len() < size {
        writeln!(text, "    value = combine(value, 0x{:016x});", random.next())?;
    }
    Ok(text)
}

/// A sequence of numbers by SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_same_each_time_and_has_files_of_many_sizes() {
        let contents: Vec<String> = (0..200).map(|n| content(n).unwrap()).collect();
        assert_eq!(contents[7], content(7).unwrap());
        let sizes = contents.iter().map(String::len);
        let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        assert!(least < 256 && (16 << 10..34 << 10).contains(&most), "{least} to {most} bytes");
        assert_eq!(contents.iter().filter(|text| text.contains("needle")).count(), 200 / WITH_WORD);
    }
}
