//! Cost of `nfs-export`: names made, renamed and removed in a pool with it, and in one without.

use anyhow::Result;

use crate::metadata::{self, MetadataAmount};
use crate::report::{Sense, Table};
use crate::test_bed::{CACHES_ON, Contender, Server, TestBed};

const PLAIN: &str = "plain";
const EXPORTED: &str = "nfs-export";

pub(crate) fn run(test_bed: &TestBed, amount: MetadataAmount, tables: &mut Vec<Table>) -> Result<()> {
    let room = &["minfreespace=64M", "passthrough-headroom=64M"][..];
    let contenders = [
        Contender::new(PLAIN, Server::Fsstack, &[room, CACHES_ON]),
        Contender::new(EXPORTED, Server::Fsstack, &[room, CACHES_ON, &["nfs-export"]]),
    ];
    let standing = test_bed.stand_all(&contenders)?;
    let mut table =
        Table::new("Operations a second, one client, of a pool that can be exported", Sense::MoreIsBetter);
    table.compare(EXPORTED, &[PLAIN], "nfs-export to plain");
    let stands: Vec<_> = standing.iter().map(|(of, at)| (*of, at)).collect();
    metadata::rounds(&stands, metadata::ONE, amount, &mut table, None)?;
    tables.push(table);
    standing.into_iter().try_for_each(|(_, at)| at.fall())
}
