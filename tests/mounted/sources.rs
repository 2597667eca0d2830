//! Sources of branches and options: globs, escapes, a config file.

use std::fs;

use fsstack_lab::cleanup::Entry;
use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, daemon, needs};

use crate::script::sh;

#[test]
fn a_glob_takes_branches_in_sorted_order() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("pair02").tmp_branch("pair01").tmp_branch("other").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let glob = format!("{}/pair*", pool.branch("other").path().parent().unwrap().display());
    command(daemon::helper().unwrap()).arg(glob).arg(pool.path()).args(["-o", "create=ff"]).run().unwrap();
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["pair01"]);
}

#[test]
fn separators_in_names_are_escaped() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a:b,c").tmp_branch("d").unmounted();
    let _mount = Entry::mount(pool.path()).unwrap();
    let above = pool.branch("d").path().parent().unwrap().display().to_string();
    let source = format!(r"{above}/a\:b\,c:{above}/d");
    command(daemon::helper().unwrap()).arg(source).arg(pool.path()).args(["-o", "create=ff"]).run().unwrap();
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["a:b,c"]);
}

#[test]
fn a_config_file_speaks_and_the_command_line_has_the_last_word() {
    needs!(mounting(), program("getfattr"));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "create = \"ff\"\nwrite-path = \"stacked\"\n").unwrap();
    let config = format!("config={}", file.path().display());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option(&config).mount();
    pool.write("file", b"x");
    assert_eq!(pool.holders("file"), ["a"]);
    let ask = "getfattr --only-values -n user.fsstack.write-path file";
    assert_eq!(sh(pool.path(), ask), "stacked");
    pool.remount_with(&[&config, "write-path=auto"]);
    assert_ne!(sh(pool.path(), ask), "stacked");
}

#[test]
fn branches_that_come_late_are_waited_for() {
    needs!(mounting(), not_on_gluster("its branches are mounts"));
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    let late = pool.branch("b").path().to_owned();
    fs::remove_dir(&late).unwrap();
    let comes = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(600));
        fs::create_dir(late).unwrap();
    });
    pool.remount_with(&["branches-timeout=20"]);
    comes.join().unwrap();
    pool.write("file", b"x");
}
