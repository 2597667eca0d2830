//! The codec: a request parsed as /dev/fuse gives it, and answers written.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fsstack_wire::{Abi, Answer, Creation, Entry, Header, Operation, Request, encode};

const ABI: Abi = Abi { setxattr_ext: true };

fn parse(criterion: &mut Criterion) {
    let data = vec![7_u8; 1 << 20];
    let creation = Creation { name: c"film.mkv", flags: 0o101, mode: 0o644, umask: 0o22, open_flags: 0 };
    let write =
        Operation::Write { fh: 1, offset: 0, write_flags: 0, lock_owner: None, flags: 0, data: &data };
    let requests = [
        ("lookup", Operation::Lookup { name: c"film.mkv" }),
        ("create", Operation::Create(creation)),
        ("write 1 MiB", write),
    ];
    let mut group = criterion.benchmark_group("parse");
    for (name, operation) in requests {
        let header = Header { unique: 2, nodeid: 1, ..Header::default() };
        let message = encode::request(ABI, &header, &operation, &[1000]).contiguous();
        group
            .bench_function(name, |b| b.iter(|| Request::parse_contiguous(ABI, black_box(&message)).is_ok()));
    }
    group.finish();
}

fn answer(criterion: &mut Criterion) {
    let entry = Entry { nodeid: 7, ..Entry::default() };
    let mut room = vec![0_u8; 64 << 10];
    let mut group = criterion.benchmark_group("answer");
    group.bench_function("entry", |b| {
        b.iter(|| {
            let mut answer = Answer::new(&mut room);
            let written = answer.entry(black_box(&entry));
            (written.is_ok(), answer.header(2))
        });
    });
    group.bench_function("100 entries with attributes", |b| {
        b.iter(|| {
            let mut answer = Answer::new(&mut room);
            answer.dirents(64 << 10, |writer| {
                (0..100_u64).all(|n| writer.plus(Some(&entry), 7, n + 1, 8, b"entry-with-a-name"))
            })
        });
    });
    group.finish();
}

criterion_group!(benches, parse, answer);
criterion_main!(benches);
