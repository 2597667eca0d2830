//! `fsstack du` and `fsstack where --catalogue`: sizes and places that no branch is asked for.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use fsstack_lab::pool::Pool;
use fsstack_lab::{self as lab, needs};
use rustix::process::Signal;

use crate::catalogue::until_complete;
use crate::command::{at, binary, branch, checked, json, output_of, refused};
use crate::script::sh;

/// Branch `a` is served by a daemon, which is stopped; `b` answers. Both have `films`.
fn pool_beside_a_stopped_branch() -> Pool {
    let builder = lab::pool().served_branch("a").tmp_branch("b");
    let mut pool = builder.option("catalogue=on").option("branch-timeout=2").unmounted();
    // `note` is on both, and shown from the first.
    let files = [("a", "films/one", 3000), ("b", "films/old/two", 500), ("a", "note", 7), ("b", "note", 90)];
    for (name, path, bytes) in files {
        let path = pool.branch(name).path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'x'; bytes]).unwrap();
    }
    let odd = std::ffi::OsStr::from_bytes(b"films/odd\xff");
    fs::write(pool.branch("b").path().join(odd), b"12345").unwrap();
    pool.remount();
    until_complete(&pool);
    pool.branch("a").daemon().signal(Signal::STOP).unwrap();
    pool
}

#[test]
fn sizes_of_directories_are_known_while_a_branch_is_stopped() {
    needs!(mounting());
    let pool = pool_beside_a_stopped_branch();
    let rows = |words: &[&str]| -> Vec<(String, u64, u64)> {
        let usage = json("du", &[&["du", &at(&pool)], words].concat());
        let row = |dir: &serde_json::Value| {
            let number = |key: &str| dir[key].as_u64().unwrap();
            (dir["path"].as_str().unwrap().to_owned(), number("names"), number("bytes"))
        };
        usage["directories"].as_array().unwrap().iter().map(row).collect()
    };
    let row = |path: &str, names, bytes| (path.to_owned(), names, bytes);
    assert_eq!(rows(&[]), [row("", 6, 3512), row("films", 4, 3505)]);
    assert_eq!(rows(&["/films", "--depth", "7"]), [row("films", 4, 3505), row("films/old", 1, 500)]);
    assert_eq!(rows(&["--depth", "0", "--branch", &branch(&pool, "a")]), [row("", 3, 3007)]);
    let text = output_of(&["du", &at(&pool)]);
    assert!(text.lines().count() == 2 && text.ends_with("/films\n"), "{text}");
    assert_eq!(refused(&["du", &at(&pool), "/films/none"]).0, 3);
    pool.branch("a").daemon().signal(Signal::CONT).unwrap();
}

#[test]
fn the_branch_of_a_path_is_known_while_it_is_stopped() {
    needs!(mounting());
    let pool = pool_beside_a_stopped_branch();
    let path = |inside: &str| format!("{}/{inside}", at(&pool));
    let on = |name: &str, inside: &str| format!("{}/{inside}", branch(&pool, name));
    let found = output_of(&["where", "--catalogue", &path("films/one")]);
    assert_eq!(found, format!("{}\n", on("a", "films/one")));
    let places = json("where", &["where", "--catalogue", &path("films"), &path("note")]);
    let places = places["places"].as_array().unwrap();
    let copies = |at: usize| places[at]["copies"].as_array().unwrap().len();
    assert_eq!((places.len(), copies(0), copies(1)), (2, 2, 2), "{places:?}");
    assert_eq!(places[1]["branch"], branch(&pool, "a").as_str());
    let odd = PathBuf::from(std::ffi::OsStr::from_bytes(&[path("films/odd").as_bytes(), b"\xff"].concat()));
    let found = lab::shell::command(lab::daemon::helper().unwrap().with_file_name("fsstack"))
        .args(["where", "--json", "--catalogue"])
        .arg(&odd)
        .run()
        .unwrap();
    assert!(found.stdout.contains("at_base64"), "{}", found.stdout);
    let (code, why) = refused(&["where", "--catalogue", &path("films/none")]);
    assert!(code == 3 && why.contains("not in the pool's catalogue"), "{code}: {why}");
    pool.branch("a").daemon().signal(Signal::CONT).unwrap();
}

#[test]
fn a_pool_without_a_catalogue_says_so() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mount();
    let (code, why) = refused(&["find", &at(&pool)]);
    assert!(code == 1 && why.contains("catalogue=on"), "{why}");
    let (code, why) = refused(&["branch", "lost", &at(&pool), &branch(&pool, "a")]);
    assert!(code == 1 && why.contains("catalogue=on"), "{why}");
}

/// The command is stopped by the full pipe behind its first page, until the daemon is dead.
#[test]
fn a_list_of_names_whose_daemon_dies_meanwhile_is_a_whole_document() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("catalogue=on").unmounted();
    (0..2500).for_each(|one| fs::write(pool.branch("a").path().join(format!("film{one}")), "").unwrap());
    let mut pool = pool;
    pool.remount();
    until_complete(&pool);
    let told = sh(
        pool.branch("a").path().parent().unwrap(),
        &format!(
            "mkfifo names
             {} find {} --json > names 2> error & asking=$!
             exec 3< names; read -rN1 <&3 first; kill -KILL {}
             printf %s \"$first\"; cat <&3; code=0; wait $asking || code=$?; echo $code >> error",
            binary().display(),
            at(&pool),
            pool.daemon().pid,
        ),
    );
    let page = checked("catalogue", &told);
    assert_eq!(page["names"].as_array().unwrap().len(), 2000);
    assert!(page["next"].is_array(), "{}", page["next"]);
    let error = fs::read_to_string(pool.branch("a").path().parent().unwrap().join("error")).unwrap();
    assert!(error.ends_with("\n4\n") && error.lines().count() == 2, "{error}");
}
