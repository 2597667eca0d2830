//! `fsstack list`: the pools that are mounted.

use super::show::{self, Style};
use super::table::{Side, Table};
use super::{Failed, dead, pool};
use fsstack_control::api::{DeadPool, ListedPool, PoolList};
use fsstack_pool::Printable;

pub(crate) fn run(style: Style) -> Result<(), Failed> {
    let pools = pool::all();
    let listed = |pool: &pool::Pool| ListedPool {
        id: pool.entry.id.clone(),
        mount_point: pool.shown(),
        pid: pool.entry.is_visible().then_some(pool.entry.pid),
        branches: pool.entry.branches.iter().map(|b| Printable::path(&b.path()).to_string()).collect(),
        socket: pool.socket.exists().then(|| Printable::path(&pool.socket).to_string()),
    };
    let dead = dead::mounts(&pools.live, |_| true);
    let dead = dead.iter().map(|mount| DeadPool { mount_point: mount.shown(), error: mount.reason() });
    let list = PoolList {
        pools: pools.live.iter().map(listed).collect(),
        dead: dead.collect(),
        cleaned_up: pools.swept,
    };
    show::answer(style, &list, human)
}

fn human(list: &PoolList) -> String {
    let mut table = Table::new(&[
        ("POOL", Side::Left),
        ("MOUNT POINT", Side::Left),
        ("PID", Side::Right),
        ("BRANCHES", Side::Left),
    ]);
    for pool in &list.pools {
        let pid = pool.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        table.row([pool.id.clone(), pool.mount_point.clone(), pid, pool.branches.join(" ")]);
    }
    let cleaned =
        list.cleaned_up.iter().map(|id| format!("{id}: its daemon is dead; what it left was cleaned up\n"));
    let dead = list.dead.iter().map(|mount| format!("{}: {}\n", mount.mount_point, mount.error));
    let text = if list.pools.is_empty() { "no pool is mounted\n".to_owned() } else { table.text() };
    text + &dead.chain(cleaned).collect::<String>()
}
