//! Placement: 16 candidates ranked.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fsstack_pool::{BranchIx, BranchMode, Candidate, Chain, Floor, Space, rank};

const BRANCHES: u16 = 16;

fn candidates() -> Vec<Candidate> {
    let one = |n: u16| Candidate {
        branch: BranchIx(n),
        mode: BranchMode::ReadWrite,
        mounted_read_only: false,
        reachable: true,
        holds_parent: n.is_multiple_of(3),
        deepest: usize::from(n % 4),
        parent_mtime: Some((i64::from(n), 0)),
        space: Space {
            total: 8 << 40,
            free: u64::from(n * 7 % BRANCHES) << 38,
            available: u64::from(n * 7 % BRANCHES) << 38,
            inodes_total: 1 << 30,
            inodes_free: 1 << 29,
        },
        floor: Floor::Bytes(4 << 30),
        min_inodes: 0,
    };
    (0..BRANCHES).map(one).collect()
}

fn ranking(criterion: &mut Criterion) {
    let candidates = candidates();
    let mut group = criterion.benchmark_group("rank 16 branches");
    for name in ["ff", "mfs", "epmfs>mfs", "mspmfs>any", "pfrd"] {
        let Ok(chain) = name.parse::<Chain>() else { continue };
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state
        };
        group.bench_function(name, |b| b.iter(|| rank(&chain, black_box(&candidates), &mut random)));
    }
    group.finish();
}

criterion_group!(benches, ranking);
criterion_main!(benches);
