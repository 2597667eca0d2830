//! sqlite in a pool, by two processes at once.

use fsstack_lab::{self as lab, needs};

use crate::script::{sh, ways};

#[test]
fn two_processes_share_a_database_in_wal_mode() {
    needs!(mounting(), program("sqlite3"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        pool.remount_with(&[&["create=rand"], way].concat());
        // Both processes map the -shm file.
        let work = r#"
          sqlite3 db 'pragma journal_mode=wal; create table t(who, n);'
          for who in 1 2; do
            (for n in $(seq 40); do echo "insert into t values ($who, $n);"; done | sqlite3 -cmd '.timeout 60000' db) &
          done; wait
          sqlite3 db 'select who, count(*), sum(n) from t group by who; pragma integrity_check;'"#;
        assert_eq!(sh(pool.path(), work), "wal\n1|40|820\n2|40|820\nok", "{way:?}");
    }
}

#[test]
fn a_rollback_journal_is_taken_back() {
    needs!(mounting(), program("sqlite3"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let work = r#"
      sqlite3 db 'create table t(n); insert into t values (1); begin; insert into t values (2); rollback; select * from t;'
      sqlite3 db 'begin immediate; insert into t values (3); commit; select sum(n) from t; pragma integrity_check;'"#;
    assert_eq!(sh(pool.path(), work), "1\n4\nok");
}
