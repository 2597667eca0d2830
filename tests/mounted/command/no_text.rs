//! Paths that are no text: commands take them, and JSON has their bytes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use fsstack_lab::{self as lab, daemon, needs, until};

use super::*;
use crate::catalogue::until_complete;

/// Runs the command with arguments of any bytes.
#[track_caller]
fn told(arguments: &[&OsStr]) -> String {
    let Finished { code, stdout, stderr, .. } = command(binary()).args(arguments).output().unwrap();
    assert_eq!(code, 0, "fsstack {arguments:?}: {stderr}");
    stdout
}

#[test]
fn directories_that_are_no_text_are_taken() {
    needs!(mounting(), root());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").option("catalogue=on").mount();
    let name = OsStr::from_bytes(b"d\xff\\\n:=,");
    fs::create_dir(pool.at(name)).unwrap();
    fs::write(pool.at(Path::new(name).join("film")), b"x").unwrap();
    let dir = OsString::from_vec([b"/", name.as_bytes()].concat());
    let at = pool.path().as_os_str();
    let of = |words: &[&str]| {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        told(&[&words[..1], &[at, &dir], &words[1..]].concat())
    };
    until_complete(&pool);
    until("the catalogue has it", || told(&[OsStr::new("find"), at]).contains("film"));
    assert!(of(&["find"]).contains("film"));
    of(&["check"]);
    of(&["balance", "--dry-run"]);
    of(&["consolidate", "--dry-run"]);
    let write_path = OsStr::new("write-path");
    let set = |way| told(&[write_path, at, OsStr::new(way), OsStr::new("--subtree"), &dir]);
    assert!(set("stacked").contains("inherit -> stacked"));
    assert!(set("inherit").contains("stacked -> inherit"));
}

/// By `jq`, which reads what `path` shows as another name.
#[test]
fn a_list_has_the_bytes_of_paths_that_are_shown_otherwise() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("catalogue=on").mount();
    pool.write("n\nx", b"");
    pool.write("n\\012x", b"");
    until_complete(&pool);
    let find = || json("catalogue", &["find", &at(&pool)]);
    until("the catalogue has both", || find()["names"].as_array().unwrap().len() == 2);
    let page = find();
    let names: Vec<_> =
        page["names"].as_array().unwrap().iter().map(|name| (&name["path"], &name["path_base64"])).collect();
    let shown = Value::from("n\\012x");
    assert_eq!(names, [(&shown, &"bgp4".into()), (&shown, &Value::Null)], "{page:#}");
    let both =
        json("where", &["where", pool.at("n\nx").to_str().unwrap(), pool.at("n\\012x").to_str().unwrap()]);
    let has_bytes = |at: usize| both["places"][at]["at_base64"].is_string();
    assert!(has_bytes(0) && !has_bytes(1), "{both:#}");
}

#[test]
fn a_pool_and_a_branch_whose_paths_are_no_text_are_named() {
    needs!(mounting(), root());
    let home = lab::pool().tmp_branch("a").unmounted();
    let above = home.path().parent().unwrap();
    let of = |name: &[u8]| above.join(OsStr::from_bytes(name));
    let (target, a, b) = (of(b"p\xff"), of(b"a\xfe"), of(b"b\xfe"));
    [&target, &a, &b].iter().for_each(|path| fs::create_dir(path).unwrap());
    let source = OsString::from_vec([a.as_os_str().as_bytes(), b":", b.as_os_str().as_bytes()].concat());
    command(daemon::helper().unwrap()).arg(&source).arg(&target).run().unwrap();
    let status = command(binary()).arg("status").arg(&target).output().unwrap();
    let removed = command(binary()).args(["branch", "remove"]).arg(&target).arg(&b).output().unwrap();
    command("umount").arg(&target).run().unwrap();
    assert_eq!((status.code, removed.code), (0, 0), "{} {}", status.stderr, removed.stderr);
    assert!(status.stdout.contains("p\\377"), "{}", status.stdout);
}

#[test]
fn explanations_and_jobs_have_the_bytes_of_paths_that_are_shown_otherwise() {
    needs!(mounting(), root());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    for name in [&b"f\xff"[..], b"plain"] {
        fs::write(pool.at(OsStr::from_bytes(name)), b"x").unwrap();
    }
    let json = |schema, words: &[&OsStr]| checked(schema, &told(&[words, &[OsStr::new("--json")]].concat()));
    let (odd, new) = (OsStr::from_bytes(b"f\xff"), OsStr::from_bytes(b"/n\xff"));
    let at = pool.path().as_os_str();
    let explain = OsStr::new("explain");
    assert_eq!(json("explain", &[explain, pool.at(odd).as_os_str()])["path_base64"], "Zv8=");
    assert_eq!(json("explain", &[explain, pool.at("plain").as_os_str()])["path_base64"], Value::Null);
    assert_eq!(json("explain-create", &[explain, at, OsStr::new("create"), new])["path_base64"], "bv8=");
    let words = ["consolidate", "--to", "--dry-run"].map(OsStr::new);
    let to = pool.branch("b").path().as_os_str();
    let planned = json("job", &[words[0], at, OsStr::new("/"), words[1], to, words[2]]);
    let of = |list: &str| {
        let moves = planned[list].as_array().unwrap();
        let mut all: Vec<_> =
            moves.iter().map(|one| one["path_base64"].as_str().map(str::to_owned)).collect();
        all.sort();
        all
    };
    assert_eq!(of("plan"), [None, Some("Zv8=".to_owned())], "{planned:#}");
}
