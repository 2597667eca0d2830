//! `fsstack nfs`: what a server is told, and what is wrong with an export.

use fsstack_lab::{self as lab, MiB, needs};

use super::{at, pool, run, told};
use crate::script::sh;

#[test]
fn an_exported_pool_tells_what_a_server_needs_and_passes_the_check() {
    needs!(mounting(), loops(), program("getfattr"));
    let pool = lab::pool().xfs_branch("x", MiB(300)).option("nfs-export").mount();
    let id = sh(pool.path(), "getfattr -n user.fsstack.id --only-values .");
    let shown = told(&["nfs", "show", &at(&pool), "--clients", "10.0.0.0/8"]);
    let line = format!("{} 10.0.0.0/8(rw,sync,no_subtree_check,fsid={id})", at(&pool));
    assert!(shown.lines().any(|shown| shown == line), "{shown}");
    assert!(shown.contains("EXPORT {") && shown.contains("# fsid:"), "{shown}");
    let checked = told(&["nfs", "check", &at(&pool)]);
    assert!(checked.contains("ok    nfs-export: on") && checked.contains("ok    handle:"), "{checked}");
}

#[test]
fn a_pool_that_is_not_for_export_fails_the_check() {
    needs!(mounting());
    let pool = pool();
    let checked = run(&["nfs", "check", &at(&pool)]);
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    assert!(checked.stdout.contains("fail  nfs-export: off"), "{}", checked.stdout);
}
