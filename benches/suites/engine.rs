//! The engine on temporary directories, without a mount: lookups, attributes, listings, and its own tables.

use std::ffi::CString;
use std::fs::File;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use fsstack_engine::answer::{Entry, Listed};
use fsstack_engine::files::route::NoBackings;
use fsstack_engine::inode::location_cache::LocationCache;
use fsstack_engine::ops::Sink;
use fsstack_engine::settings::Settings;
use fsstack_engine::{Pool, Union};
use fsstack_pool::{BranchSpec, Chain, EntryName, Ino};
use fsstack_sys::OFlags;
use tempfile::TempDir;

const NAMES: usize = 1000;

/// A pool over directories that go with it.
struct EngineBed {
    union: Union,
    homes: Vec<TempDir>,
}

impl EngineBed {
    fn new(branches: usize) -> Self {
        let homes: Vec<TempDir> = (0..branches).filter_map(|_| tempfile::tempdir().ok()).collect();
        let specs: Vec<BranchSpec> =
            homes.iter().map(|home| BranchSpec::new(home.path().to_owned())).collect();
        let settings = Settings {
            create: Chain::default_create(),
            recheck: Duration::from_secs(1),
            privileged: fsstack_sys::identity::is_root(),
            ..Settings::plain()
        };
        let pool = Pool::open(&specs, settings).unwrap_or_else(|error| panic!("{error}"));
        Self { union: Union::new(pool, Arc::new(NoBackings)), homes }
    }

    /// Files in the pool's root, on all branches in turn.
    fn populate(self) -> Self {
        for n in 0..NAMES {
            let home = self.homes[n % self.homes.len()].path();
            File::create(home.join(format!("known-{n}"))).unwrap_or_else(|error| panic!("{error}"));
        }
        self
    }

    fn lookup(&self, name: &CString) -> Option<Entry> {
        let entry = self.union.lookup(Ino::ROOT, EntryName::new(name).ok()?).ok()?;
        self.union.forget(entry.ino, 1);
        Some(entry)
    }
}

fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine lookup");
    for branches in [1, 2, 16] {
        let test_bed = EngineBed::new(branches).populate();
        let last = branches - 1;
        let known = CString::new(format!("known-{last}")).unwrap_or_default();
        group.bench_function(format!("known name, {branches} branches"), |b| {
            b.iter(|| test_bed.lookup(black_box(&known)));
        });
        let missing = CString::from(c"missing");
        group.bench_function(format!("missing name, {branches} branches"), |b| {
            b.iter(|| test_bed.lookup(black_box(&missing)));
        });
    }
    group.finish();
}

/// Counts what a listing puts out.
#[derive(Debug, Default)]
struct Counted {
    entries: usize,
}

impl Sink for Counted {
    fn fits(&self, _: usize) -> bool {
        true
    }

    fn put(&mut self, _: &Listed<'_>, _: Option<&Entry>) {
        self.entries += 1;
    }
}

fn listings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine readdir, 1000 names");
    for branches in [1, 2, 16] {
        let test_bed = EngineBed::new(branches).populate();
        group.bench_function(format!("{branches} branches"), |b| {
            b.iter(|| {
                let mut counted = Counted::default();
                if let Ok(handle) = test_bed.union.opendir(Ino::ROOT, OFlags::empty()) {
                    let _listed = test_bed.union.readdir(handle, 0, None, &mut counted);
                    test_bed.union.releasedir(handle);
                }
                counted.entries
            });
        });
    }
    group.finish();
}

fn tables(criterion: &mut Criterion) {
    let seen = LocationCache::default();
    (0..1000_u64).for_each(|n| seen.set(Ino(n), b"film.mkv", Ino(n + 1)));
    criterion.bench_function("where a name was seen last", |b| {
        b.iter(|| seen.get(black_box(Ino(500)), black_box(b"film.mkv")));
    });
}

criterion_group!(benches, lookups, listings, tables);
criterion_main!(benches);
