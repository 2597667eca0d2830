//! The pool's daemon is replaced, dies or empties a branch while its server runs and clients work.

use crate::handles::HoldingClient;
use crate::test_bed::{CLIENTS, TestBed, attempt, say, sh};
use crate::work::beside_workers;

pub(crate) fn scenario(test_bed: &mut TestBed) {
    let mut clients: Vec<HoldingClient> = CLIENTS.iter().map(|client| HoldingClient::new(client)).collect();
    let mut over = |event: &str, act: &dyn Fn()| {
        say(event);
        beside_workers(act);
        HoldingClient::check(&mut clients, event);
    };
    over("an upgrade of the daemon", &|| _ = sh("fsstack upgrade /mnt/pool"));
    let down = || {
        test_bed.stop_server();
        test_bed.unmount_pool();
    };
    let with = |more: &str| {
        test_bed.mount_pool_with("/mnt/a:/mnt/b", more);
        test_bed.start_server();
    };
    down();
    // Files that the server holds open would be waited for, with passthrough.
    with(",write-path=stacked");
    let drains = |branch: &str| {
        sh(&format!("fsstack branch drain /mnt/pool {branch}"));
        assert_eq!(
            sh(&format!("find {branch} -type f -not -path '*/.fsstack*'")),
            "",
            "files of the drained branch"
        );
    };
    over("a drain of a branch", &|| drains("/mnt/a"));
    sh("fsstack branch mode /mnt/pool /mnt/a RW");
    over("a drain of the other branch", &|| drains("/mnt/b"));
    sh("fsstack branch mode /mnt/pool /mnt/b RW");
    down();
    if sh("uname -r | cut -d. -f1,2") == "6.1\n" {
        let refused = attempt("mount.fsstack /mnt/a:/mnt/b /mnt/pool -o nfs-export,restart=keep").stderr;
        assert!(refused.contains("this kernel does not send requests again"), "{refused}");
        say("restart=keep is refused by this kernel: no deaths");
        with("");
        return clients.iter().for_each(HoldingClient::report);
    }
    with(",restart=keep");
    over("a death of the daemon with restart=keep", &|| test_bed.kill_kept_daemon());
    over("an upgrade of a daemon with restart=keep", &|| _ = sh("fsstack upgrade /mnt/pool"));
    over("a death after an upgrade", &|| test_bed.kill_kept_daemon());
    clients.iter().for_each(HoldingClient::report);
}
