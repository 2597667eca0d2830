//! Frequent requests allocate no memory, from the parsed request to the built answer.

use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::files::route::NoBackings;
use fsstack_engine::{Pool, Union};
use fsstack_fuse::{Adapter, Outcome, Serve, Timeouts};
use fsstack_pool::settings::Xattrs;
use fsstack_pool::{BranchSpec, Ino};
use fsstack_sys::allocations;
use fsstack_wire::{Abi, Answer, Header, Operation, Request, encode};

use crate::test_bed::{TestBed, buf, settings};

const ABI: Abi = Abi { setxattr_ext: false };

/// Number of allocations for a repeated request about `nodeid`.
fn taken(adapter: &Adapter, nodeid: u64, op: &Operation<'_>, wanted: Outcome) -> u64 {
    let header = Header { unique: 2, nodeid, ..Header::default() };
    let parts = encode::request(ABI, &header, op, &[]);
    let mut room = vec![0; 4096];
    let mut serve = || {
        let request = Request::parse(ABI, &parts.header, &parts.op_in, &parts.rest).unwrap();
        adapter.serve(&request, &mut Answer::new(&mut room))
    };
    assert_eq!((serve(), serve()), (wanted, wanted));
    allocations::scope(serve).1
}

#[test]
fn lookups_and_attributes_take_no_memory() {
    assert!(allocations::scope(|| drop(std::hint::black_box(Box::new(1)))).1 > 0, "it counts");
    let pool = TestBed::new(2);
    pool.put(1, "film", "x");
    let specs = [0, 1].map(|at| BranchSpec::new(pool.branch(at).to_owned()));
    let union = Arc::new(Union::new(Pool::open(&specs, settings()).unwrap(), Arc::new(NoBackings)));
    let second = Duration::from_secs(1);
    let timeouts =
        Timeouts { entry: second, attr: second, negative: Duration::ZERO, watched: (second, second) };
    let adapter = Adapter::new(union.clone(), timeouts, ABI, Xattrs::On);
    let film = union.lookup(Ino::ROOT, buf("film").as_name()).unwrap().ino;
    let missing = Outcome::Refused(fsstack_sys::Errno::NOENT.raw_os_error());
    for (what, nodeid, op, wanted) in [
        ("a known name", 1, Operation::Lookup { name: c"film" }, Outcome::Answered),
        ("a missing name", 1, Operation::Lookup { name: c"none" }, missing),
        ("attributes", film.0, Operation::Getattr { fh: None }, Outcome::Answered),
    ] {
        assert_eq!(taken(&adapter, nodeid, &op, wanted), 0, "{what}");
    }
    union.destroy();
}
