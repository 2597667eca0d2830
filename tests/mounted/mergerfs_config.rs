//! A config file of mergerfs: `config=` reads it as it is, and `--persist` keeps it one.

use std::fs;

use fsstack_lab::{self as lab, needs};

use crate::command::{at, output_of};

/// Options of mergerfs's quick start. Some have other names here, some mean nothing.
const FILE: &str = "# my pool\ncache.files=off\ncategory.create=epmfs\nmoveonenospc=true\nfunc.getattr=newest\n\
                    dropcacheonclose=false\nallow_other=true\ncache.attr=7\nnoforget=true\n";

#[test]
fn a_config_file_of_mergerfs_is_read_and_stays_one() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mergerfs.conf");
    fs::write(&file, FILE).unwrap();
    let builder = lab::pool().tmp_branch("a").tmp_branch("b").option(&format!("config={}", file.display()));
    let mut pool = builder.mount();
    let get = |pool: &lab::Pool, key: &str| output_of(&["get", &at(pool), key]);
    assert_eq!((get(&pool, "create").trim(), get(&pool, "attr-timeout").trim()), ("epmfs", "7"));
    output_of(&["set", &at(&pool), "create=ff", "write-path=stacked", "--persist"]);
    let kept = FILE.replace("=epmfs", "=ff") + "write-path=stacked\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), kept);
    pool.remount();
    assert_eq!((get(&pool, "create").trim(), get(&pool, "write-path").trim()), ("ff", "stacked"));
}
