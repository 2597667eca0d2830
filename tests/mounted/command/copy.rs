//! `fsstack copy`: trees copied into a pool without FUSE, completely or not at all.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use fsstack_lab::daemon::Process;
use fsstack_lab::{self as lab, MiB, Pool, needs};
use tempfile::TempDir;

use super::*;
use crate::script::sh;

/// A source to be filled.
pub(super) fn source() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (dir, tree)
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a copy that must succeed; returns its report.
#[track_caller]
pub(super) fn copy(from: &Path, into: &Path) -> Value {
    json("copy", &["copy", text(from), text(into)])
}

/// Output of a partly failed copy, and the lines for the failures.
#[track_caller]
fn copy_in_part(arguments: &[&str]) -> (Value, Vec<String>) {
    let Finished { code, stdout, stderr, .. } = run(&[&["copy", "--json"], arguments].concat());
    assert_eq!(code, 1, "{stdout}{stderr}");
    (checked("copy", &stdout), stderr.lines().map(str::to_owned).collect())
}

/// Pseudo-random bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

/// No leftovers of a copy on the branches, and no reservations.
#[track_caller]
fn nothing_left(pool: &Pool) {
    // The daemon cleans up when it notices that the copy is gone.
    let cleared = || {
        let status = json("status", &["status", &at(pool)]);
        let promised = status["pools"][0]["branches"].as_array().unwrap();
        promised.iter().all(|branch| branch["reserved"] == 0)
            && pool.branches().iter().all(|branch| !branch.path().join(".fsstack.moving").exists())
    };
    for _ in 0..600 {
        if cleared() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("something is left");
}

#[test]
fn a_tree_arrives_with_all_that_belongs_to_it() {
    needs!(mounting(), root(), program("setfattr"), program("setfacl"));
    needs!(not_on_gluster("its root sees ACLs as trusted.SGI_ACL_FILE too"));
    let pool = pool();
    let (_home, tree) = source();
    let make = "
        mkdir -p d/e/empty; head -c 3000000 /dev/urandom > d/large; head -c 5001 /dev/urandom > d/e/odd
        : > nothing; echo small > 'a name with spaces'; printf x > $'newline\\nin it'
        truncate -s 20M sparse; printf middle | dd of=sparse bs=1 seek=9000000 conv=notrunc status=none
        ln d/large d/e/again; ln d/large third; ln -s ../nowhere d/link; mkfifo pipe
        setfattr -n user.colour -v blue d/large; setfattr -n user.on -v dir d; setfattr -n trusted.t -v 1 nothing
        setfacl -m u:1234:rw d/e/odd; setfacl -d -m g:77:rx d/e
        chown 1234:4321 d/e/odd pipe; chown -h 5:6 d/link; chown 0:50 d/e
        chmod 4755 nothing; chmod 2771 d/e; chmod 0400 d/large; chmod 1777 d/e/empty
        touch -h -d '2001-02-03 04:05:06.123456789' d/link pipe
        touch -d '1999-12-31 23:59:59.987654321' d/e/odd d/e/empty d/e d sparse";
    sh(&tree, make);
    let report = copy(&tree, pool.path());
    // Attributes of everything, except a directory's size and link count, which depend on the file system.
    let files = "find . ! -type d -printf '%P|%y|%m|%U|%G|%s|%T@|%n|%l\\n' | sort";
    let dirs = "find . -type d -printf '%P|%m|%U|%G|%T@\\n' | sort";
    let attributes =
        "getfattr -R -h -d -m '^(user|trusted|security.capability)' . | sort; getfacl -R -n -P .";
    for listing in [files, dirs, attributes, "find . -type f -exec md5sum {} + | sort"] {
        assert_eq!(sh(pool.at("tree"), listing), sh(&tree, listing), "{listing}");
    }
    assert!(fs::metadata(pool.at("tree/sparse")).unwrap().blocks() < 4096, "holes stay holes");
    assert_eq!((&report["files"], &report["hard_links"]), (&6.into(), &2.into()), "{report:#}");
    assert_eq!((&report["symlinks"], &report["others"]), (&1.into(), &1.into()));
    assert_eq!((&report["directories"], &report["already_there"]), (&4.into(), &0.into()));
    assert_eq!(report["branches"][0]["branch"], branch(&pool, "a"));
    nothing_left(&pool);
    // A second copy has nothing to do.
    let again = copy(&tree, pool.path());
    assert_eq!((&again["files"], &again["directories"]), (&0.into(), &0.into()), "{again:#}");
    assert_eq!(again["already_there"], 10);
}

#[test]
fn an_original_without_an_access_list_is_given_none() {
    needs!(mounting(), root(), program("setfacl"));
    let pool = pool();
    let (_home, tree) = source();
    sh(&tree, "umask 027; mkdir d; echo > d/file; mkfifo d/pipe; mknod d/node c 1 3; umask 022; echo > open");
    // Everything made on the branches inherits it.
    sh(pool.path(), "setfacl -d -m u:1234:rwx .");
    copy(&tree, pool.path());
    let look = "find . -print0 | sort -z | xargs -0 getfacl -n -P";
    assert_eq!(sh(pool.at("tree"), look), sh(&tree, look));
}

#[test]
fn large_files_are_the_same_to_the_last_byte() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("x", MiB(300)).mount();
    let (_home, tree) = source();
    let sizes = [(256 << 10) - 1, (256 << 10) + 1, 1 << 20, (9 << 20) + 4095, 40_000_001];
    for (seed, size) in (1..).zip(sizes) {
        fs::write(tree.join(size.to_string()), noise(seed, size)).unwrap();
    }
    // Data and holes at arbitrary offsets.
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&noise(9, 700_001), 5_000_003).unwrap();
    sparse.write_all_at(&noise(10, 3 << 20), 30 << 20).unwrap();
    output_of(&["copy", "--verify", "-j", "3", text(&tree), &at(&pool)]);
    for entry in fs::read_dir(&tree).unwrap() {
        let name = entry.unwrap().file_name();
        let same = fs::read(tree.join(&name)).unwrap() == fs::read(pool.at("tree").join(&name)).unwrap();
        assert!(same, "{name:?}");
    }
    assert!(fs::metadata(pool.at("tree/sparse")).unwrap().blocks() < 16384, "holes stay holes");
    nothing_left(&pool);
}

#[test]
fn files_are_placed_by_the_policy_and_seen_at_once() {
    needs!(mounting());
    let pool = lab::pool()
        .tmpfs_branch("small", MiB(16))
        .tmpfs_branch("large", MiB(64))
        .option("create=mfs")
        .mount();
    let (_home, tree) = source();
    fs::write(tree.join("film"), noise(1, 1 << 20)).unwrap();
    pool.mkdir("tree");
    assert!(!pool.at("tree/film").exists(), "the kernel may remember that");
    let report = json("copy", &["copy", text(&tree.join("film")), text(&pool.at("tree"))]);
    assert!(pool.at("tree/film").exists());
    assert_eq!(pool.list("tree"), ["film"]);
    assert_eq!(pool.holders("tree/film"), ["large"]);
    assert_eq!(report["branches"][0]["branch"], branch(&pool, "large"));
    // A directory's content without the directory; and several sources.
    fs::write(tree.join("second"), "2").unwrap();
    let contents = format!("{}/.", text(&tree));
    json("copy", &["copy", &contents, text(&tree), &at(&pool)]);
    assert_eq!(pool.read("second"), b"2");
    assert_eq!(pool.read("tree/second"), b"2");
}

#[test]
fn an_existing_name_is_kept() {
    needs!(mounting());
    let pool = pool();
    let (_home, tree) = source();
    for name in ["file", "other", "link", "dir"] {
        fs::write(tree.join(name), "source").unwrap();
    }
    pool.mkdir("tree");
    pool.mkdir("tree/dir");
    pool.write("tree/file", b"pool's");
    fs::set_permissions(pool.at("tree"), fs::Permissions::from_mode(0o751)).unwrap();
    let outside = tree.with_file_name("outside");
    symlink(&outside, pool.at("tree/link")).unwrap();
    let (report, lines) = copy_in_part(&[text(&tree), &at(&pool)]);
    assert_eq!(report["files"], 1);
    assert_eq!(report["failed"].as_array().unwrap().len(), 3);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines.iter().all(|line| line.starts_with("fsstack: ") && line.contains("another one")),
        "{lines:?}"
    );
    assert_eq!(pool.read("tree/file"), b"pool's");
    assert_eq!(pool.read("tree/other"), b"source");
    assert!(!outside.exists(), "no link is followed");
    assert_eq!(fs::metadata(pool.at("tree")).unwrap().mode() & 0o7777, 0o751, "it was there before");
    nothing_left(&pool);
}

#[test]
fn a_link_in_place_of_a_directory_leads_nowhere() {
    needs!(mounting());
    let pool = pool();
    let (home, tree) = source();
    fs::write(tree.join("file"), "secret").unwrap();
    let outside = home.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, pool.at("tree")).unwrap();
    let (_, lines) = copy_in_part(&[text(&tree), &at(&pool)]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // Links in the source are copied, not followed.
    let links = home.path().join("links");
    fs::create_dir(&links).unwrap();
    symlink(&tree, links.join("to")).unwrap();
    copy(&links, pool.path());
    assert_eq!(fs::read_link(pool.at("links/to")).unwrap(), tree);
}

#[test]
fn verify_finds_other_content_of_the_same_size_and_time() {
    needs!(mounting());
    let pool = pool();
    let (_home, tree) = source();
    let file = tree.join("file");
    fs::write(&file, "right").unwrap();
    copy(&tree, pool.path());
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    pool.write("tree/file", b"wrong");
    for path in [&file, &pool.at("tree/file")] {
        fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    }
    assert_eq!(copy(&tree, pool.path())["already_there"], 1);
    let (report, lines) = copy_in_part(&["--verify", text(&tree), &at(&pool)]);
    assert_eq!(report["verified"], true);
    assert!(lines[0].contains("other content"), "{lines:?}");
    assert_eq!(pool.read("tree/file"), b"wrong", "nothing is replaced");
}

#[test]
fn a_full_pool_takes_what_fits_and_says_so() {
    needs!(mounting());
    let pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(16)).option("create=ff").mount();
    let (_home, tree) = source();
    for name in ["1", "2", "3"] {
        fs::write(tree.join(name), noise(1, 8 << 20)).unwrap();
    }
    let (report, lines) = copy_in_part(&["-j", "1", text(&tree), &at(&pool)]);
    assert_eq!((&report["files"], lines.len()), (&2.into(), 1), "{lines:?}");
    assert!(lines[0].contains("No space left"), "{lines:?}");
    assert_eq!(report["branches"].as_array().unwrap().len(), 2);
    let arrived = pool.list("tree");
    assert_eq!(arrived.len(), 2);
    nothing_left(&pool);
    // With more space the rest is copied; the order in the source decides which files came first.
    fs::remove_file(pool.at("tree").join(&arrived[0])).unwrap();
    fs::remove_file(tree.join(&arrived[0])).unwrap();
    assert_eq!(copy(&tree, pool.path())["files"], 1);
}

#[test]
fn a_branch_that_is_fuller_than_it_says_is_passed_over() {
    needs!(mounting());
    let pool =
        lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(32)).option("minfreespace=0").mount();
    let (_home, tree) = source();
    fs::write(tree.join("film"), noise(1, 10 << 20)).unwrap();
    output_of(&["set", &at(&pool), "create=ff"]);
    // Written out of band; the pool uses its cached space for a second.
    output_of(&["status", &at(&pool)]);
    fs::write(pool.branch("a").path().join("ballast"), noise(2, 12 << 20)).unwrap();
    assert_eq!(copy(&tree, pool.path())["files"], 1);
    assert_eq!(pool.holders("tree/film"), ["b"]);
    assert!(pool.read("tree/film") == noise(1, 10 << 20));
    nothing_left(&pool);
}

/// A running copy.
struct Started {
    process: Option<Process>,
    end: JoinHandle<Finished>,
}

fn start(from: &Path, pool: &Pool) -> Started {
    let report = from.with_file_name("pid");
    let _none_before = fs::remove_file(&report);
    let script = r#"echo $$ > "$TOLD.new"; mv "$TOLD.new" "$TOLD"; exec "$@""#;
    let copy = command("sh").args(["-c", script, "sh"]).arg(binary()).arg("copy").arg(from).arg(pool.path());
    let copy = copy.env("TOLD", &report);
    let end = thread::spawn(move || copy.output().unwrap());
    while !report.exists() {
        thread::yield_now();
    }
    let pid = fs::read_to_string(report).unwrap();
    Started { process: Process::of(pid.trim().parse().unwrap()), end }
}

#[test]
fn a_killed_copy_leaves_whole_files_and_is_finished_by_the_next() {
    needs!(mounting(), not_on_gluster("it copies four thousand files"));
    let pool = pool();
    let (_home, tree) = source();
    let content = |number: u64| noise(number, 2000 + usize::try_from(number % 7).unwrap() * 3000);
    let files = 4000;
    for dir in 0..40 {
        fs::create_dir(tree.join(format!("d{dir}"))).unwrap();
    }
    let name = |number: u64| format!("d{}/{number}", number % 40);
    for number in 0..files {
        fs::write(tree.join(name(number)), content(number)).unwrap();
    }
    fs::set_permissions(tree.join("d3"), fs::Permissions::from_mode(0o750)).unwrap();
    let there = || (0..files).filter(|number| pool.at("tree").join(name(*number)).exists());
    for _ in 0..2 {
        let before = there().count();
        let copying = start(&tree, &pool);
        while there().count() == before && !copying.end.is_finished() {
            for number in there().take(20) {
                assert!(pool.read(format!("tree/{}", name(number))) == content(number), "half of {number}");
            }
        }
        copying.process.map(Process::kill).transpose().unwrap();
        copying.end.join().unwrap();
        for number in there() {
            assert!(pool.read(format!("tree/{}", name(number))) == content(number), "half of {number}");
        }
        nothing_left(&pool);
    }
    let came = there().count() as u64;
    let report = copy(&tree, pool.path());
    assert_eq!((&report["files"], &report["already_there"]), (&(files - came).into(), &came.into()));
    for number in 0..files {
        assert!(pool.read(format!("tree/{}", name(number))) == content(number), "{number}");
    }
    let modes = "find . -printf '%P|%m|%T@\\n' | sort";
    assert_eq!(sh(pool.at("tree"), modes), sh(&tree, modes), "directories are finished too");
}

#[test]
fn a_directory_that_a_killed_copy_had_just_made_is_finished() {
    needs!(mounting());
    let pool = pool();
    let (_home, tree) = source();
    for (name, mode) in [("just-made", 0o755), ("older", 0o755)] {
        fs::create_dir(tree.join(name)).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(tree.join("just-made/film"), "x").unwrap();
    // Made, and killed before it was marked; and one with another owner.
    sh(pool.path(), "mkdir -p tree/just-made tree/older; chmod 700 tree/just-made; chmod 711 tree/older");
    copy(&tree, pool.path());
    assert_eq!(sh(pool.at("tree"), "stat -c %a just-made older"), "755\n711");
}

#[test]
fn a_directory_that_lacks_something_is_finished_when_that_has_come() {
    needs!(mounting(), root(), program("setfattr"));
    let pool = pool();
    let (_home, tree) = source();
    sh(&tree, "mkdir d; echo right > d/film; echo x > d/other; touch -d 2001-02-03 d; chmod 750 d");
    // Left by an interrupted copy; meanwhile another program has made a file of that name.
    sh(
        pool.path(),
        "mkdir -p tree/d; echo wrong, and longer > tree/d/film; setfattr -n trusted.copy.unfinished -v 1 tree/d",
    );
    let (_, lines) = copy_in_part(&[text(&tree), &at(&pool)]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("d/film") && lines[0].contains("another one"), "{lines:?}");
    fs::remove_file(pool.at("tree/d/film")).unwrap();
    copy(&tree, pool.path());
    assert_eq!(pool.read("tree/d/film"), b"right\n");
    let look = "stat -c '%a %y' d; getfattr -d -m trusted d";
    assert_eq!(sh(pool.at("tree"), look), sh(&tree, look));
}

/// Clears immutable and append-only flags on drop, so that the files can be removed.
struct ClearedFlags([PathBuf; 2]);

impl Drop for ClearedFlags {
    fn drop(&mut self) {
        self.0.iter().for_each(|dir| drop(sh(dir, "chattr -R -f -i -a . || :")));
    }
}

#[test]
fn immutable_and_append_only_files_arrive_so_with_all_their_names() {
    needs!(mounting(), root(), loops(), program("chattr"));
    let sources = lab::pool().xfs_branch("s", MiB(300)).unmounted();
    let pool = lab::pool().xfs_branch("a", MiB(300)).mount();
    let tree = sources.branch("s").path().join("tree");
    let _frozen = ClearedFlags([tree.clone(), pool.branch("a").path().to_owned()]);
    fs::create_dir(&tree).unwrap();
    // Further names in directories that are copied long after the first.
    let make = "echo x > one; for d in $(seq 200); do mkdir $d; echo $d > $d/file; done
                for d in 1 50 100 150 200; do ln one $d/name; done
                mkdir log; echo x > log/entry; echo y > alone; chattr +a log alone; chattr +i one 7 7/file";
    sh(&tree, make);
    copy(&tree, pool.path());
    let look = "lsattr -R . | grep -v '^$' | sort -k 2; stat -c '%h %n' one 50/name alone";
    assert_eq!(sh(pool.at("tree"), look), sh(&tree, look));
    let again = copy(&tree, pool.path());
    assert_eq!((&again["files"], &again["hard_links"]), (&0.into(), &0.into()), "{again:#}");
}

#[test]
fn a_branch_is_not_copied_into_its_own_pool() {
    needs!(mounting());
    let pool = pool();
    pool.mkdir("old");
    pool.mkdir("films");
    pool.write("films/one", b"x");
    let (a, into) = (branch(&pool, "a"), text(&pool.at("old")).to_owned());
    for source in [a.clone(), format!("{a}/."), format!("{a}/films"), format!("{a}/films/one")] {
        let (_, lines) = copy_in_part(&[&source, &into]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("branch of this pool"), "{lines:?}");
    }
    let above = PathBuf::from(&a).parent().unwrap().to_owned();
    let (_, lines) = copy_in_part(&[text(&above), &into]);
    assert!(lines.iter().all(|line| line.contains("branch of this pool")), "{lines:?}");
    // The pool's files are reached through the pool.
    output_of(&["copy", text(&pool.at("films")), &into]);
    assert_eq!(pool.read("old/films/one"), b"x");
}

#[test]
fn sources_that_vanish_meanwhile_are_reported_and_the_rest_is_complete() {
    needs!(mounting());
    let pool = pool();
    let (_home, tree) = source();
    let files = 2000_u64;
    for number in 0..files {
        fs::write(tree.join(number.to_string()), noise(number, 3000)).unwrap();
    }
    let copying = start(&tree, &pool);
    for number in (0..files).rev() {
        fs::remove_file(tree.join(number.to_string())).unwrap();
    }
    let code = copying.end.join().unwrap().code;
    assert!(code == 0 || code == 1, "{code}");
    for name in pool.list("tree") {
        let number = name.to_str().unwrap().parse().unwrap();
        assert!(pool.read(Path::new("tree").join(&name)) == noise(number, 3000), "half of {number}");
    }
    nothing_left(&pool);
}

#[test]
fn failures_of_a_copy_are_one_line_each() {
    needs!(mounting());
    let pool = pool();
    let (home, tree) = source();
    let at = at(&pool);
    for (arguments, code, says) in [
        (&[text(&tree), "/nowhere/at/all"][..], 3, "No such file"),
        (&[text(&tree), text(home.path())], 3, "not in a pool"),
        (&[text(&tree), "/etc/passwd"], 2, "not a directory"),
        (&[at.as_str()], 2, "SRC... POOLDIR"),
        (&[], 2, "required"),
        (&["-j", "0", text(&tree), &at], 2, "0"),
        (&["-j", "many", text(&tree), &at], 2, "many"),
    ] {
        let (ended, line) = refused(&[&["copy"], arguments].concat());
        assert_eq!(ended, code, "{arguments:?}: {line}");
        assert!(line.contains(says), "{arguments:?}: {line}");
    }
    let missing = home.path().join("missing");
    let (_, lines) = copy_in_part(&[text(&missing), text(&tree), &at]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("missing") && lines[0].contains("No such file"), "{lines:?}");
    assert!(pool.at("tree").is_dir(), "the rest is copied");
    // Not into itself.
    pool.mkdir("d");
    pool.write("d/file", b"x");
    let (_, lines) = copy_in_part(&[text(&pool.at("d")), text(&pool.at("d"))]);
    assert!(lines[0].contains("copied into"), "{lines:?}");
    let (_, lines) = copy_in_part(&[text(&pool.at("d")), &at]);
    assert!(lines[0].contains("copied into"), "{lines:?}");
    assert_eq!(pool.list("d"), ["file"]);
    let human = output_of(&["copy", text(&tree), text(&pool.at("d"))]);
    assert!(human.contains("0 files") && human.contains("1 directories"), "{human}");
}
