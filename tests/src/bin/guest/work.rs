//! Work over the maximum number of connections: a repository that is checked out, a program that is built, and two
//! minutes of many concurrent workers, whose files are compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::test_bed::{CLIENTS, TestBed, forget, in_pool, say, sh, until};

/// Duration of all of it.
const LONG: Duration = Duration::from_secs(120);
/// Workers of each client.
const WORKERS: u64 = 4;
/// Maximum number of files per worker.
const FILES: u64 = 24;

pub(crate) fn scenario(_: &mut TestBed) {
    // Emulated, each takes minutes beside the workers.
    thread::scope(|scope| {
        scope.spawn(|| checked_out("/mnt/v4"));
        scope.spawn(|| built("/mnt/v3"));
    });
    say("eight workers");
    let began = Instant::now();
    thread::scope(|scope| {
        for client in CLIENTS {
            for n in 0..WORKERS {
                scope.spawn(move || Worker::new(client, n).work(|| began.elapsed() < LONG));
            }
        }
    });
}

/// Does `act` beside one worker of each client; then removes what they made.
pub(crate) fn beside_workers(act: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in CLIENTS {
            let is_over = &is_over;
            scope.spawn(move || Worker::new(client, 0).work(|| !is_over.load(Relaxed)));
        }
        // Also if something panics.
        let end = EndsWork(&is_over);
        // Each has done something.
        until("work", || CLIENTS.iter().all(|client| in_pool(&worker_name(client, 0)).join("0").exists()));
        act();
        drop(end);
    });
    sh("rm -r /mnt/pool/worker-*");
    forget();
}

struct EndsWork<'a>(&'a AtomicBool);

impl Drop for EndsWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn worker_name(client: &str, n: u64) -> String {
    format!("worker-{}-{n}", &client[5..])
}

/// A worker that writes, reads, renames and removes its own files, and knows their content.
struct Worker {
    /// Written by this client, and read by the other.
    dirs: [PathBuf; 2],
    name: String,
    random: u64,
    files: Vec<Option<(u64, usize)>>,
}

impl Worker {
    fn new(client: &str, n: u64) -> Self {
        let other = if client == CLIENTS[0] { CLIENTS[1] } else { CLIENTS[0] };
        let name = worker_name(client, n);
        let dirs = [client, other].map(|client| Path::new(client).join(&name));
        fs::create_dir(&dirs[0]).unwrap();
        let random = n * 2 + 1 + u64::from(client == CLIENTS[0]);
        Self { dirs, name, random, files: vec![None; usize::try_from(FILES).unwrap()] }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn work(mut self, goes_on: impl Fn() -> bool) {
        let mut done = 0;
        self.write(0);
        while goes_on() {
            let slot = usize::try_from(self.random(FILES)).unwrap();
            match self.random(10) {
                0..4 => self.write(slot),
                4..7 => self.read(slot),
                7 => self.remove(slot),
                8 => self.replace(slot),
                _ => self.list(),
            }
            done += 1;
        }
        forget();
        // By the other client, and locally.
        for slot in 0..self.files.len() {
            self.read(slot);
            let Some((seed, len)) = self.files[slot] else { continue };
            let there = fs::read(in_pool(&self.name).join(slot.to_string())).unwrap();
            assert!(there == bytes(seed, len), "{} {slot}", self.name);
        }
        say(&format!("{}: {done} acts", self.name));
    }

    fn write(&mut self, slot: usize) {
        let (seed, len) = (self.random(u64::MAX >> 1), usize::try_from(self.random(256 << 10)).unwrap());
        fs::write(self.dirs[0].join(slot.to_string()), bytes(seed, len)).unwrap();
        self.files[slot] = Some((seed, len));
    }

    fn read(&mut self, slot: usize) {
        let path = self.dirs[0].join(slot.to_string());
        match self.files[slot] {
            None => assert!(!path.exists(), "{}", path.display()),
            Some((seed, len)) => assert!(fs::read(&path).unwrap() == bytes(seed, len), "{}", path.display()),
        }
    }

    fn remove(&mut self, slot: usize) {
        if self.files[slot].take().is_some() {
            fs::remove_file(self.dirs[0].join(slot.to_string())).unwrap();
        }
    }

    fn replace(&mut self, slot: usize) {
        let (seed, len) = (self.random(u64::MAX >> 1), usize::try_from(self.random(64 << 10)).unwrap());
        fs::write(self.dirs[0].join("fresh"), bytes(seed, len)).unwrap();
        fs::rename(self.dirs[0].join("fresh"), self.dirs[0].join(slot.to_string())).unwrap();
        self.files[slot] = Some((seed, len));
    }

    fn list(&self) {
        let names = fs::read_dir(&self.dirs[0]).unwrap().map(|entry| entry.unwrap().file_name());
        let mut found: Vec<usize> = names.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
        found.sort_unstable();
        let known: Vec<usize> = (0..self.files.len()).filter(|slot| self.files[*slot].is_some()).collect();
        assert_eq!(found, known, "{}", self.name);
        // The other client sees it too, if not at once.
        fs::read_dir(&self.dirs[1]).unwrap().for_each(|entry| drop(entry.unwrap()));
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Branches of a repository are checked out in turn, and its store stays intact.
fn checked_out(client: &str) {
    say("a repository");
    let git = |line: &str| sh(&format!("cd {client}/repository && git -c core.fsync=none {line}"));
    sh(&format!(
        "mkdir {client}/repository && cd {client}/repository && git -c init.defaultBranch=one init -q . 2>/dev/null
         git config user.name guest; git config user.email guest@localhost; git config gc.auto 0
         for d in a b c; do mkdir $d; for n in $(seq 12); do echo $d $n > $d/$n; done; done
         git add -A && git commit -qm one && git checkout -qb two
         rm -r a; for n in $(seq 12); do echo changed >> b/$n; echo new > c/new$n; done
         git add -A && git commit -qm two"
    ));
    for _ in 0..2 {
        git("checkout -q one");
        assert_eq!(git("status --porcelain"), "");
        assert_eq!(sh(&format!("cd {client}/repository && ls a b c | grep -c '^[0-9]'")).trim(), "36");
        git("checkout -q two");
        assert_eq!(git("status --porcelain"), "");
    }
    git("fsck --strict");
    say("the repository is sound");
}

/// Many units, two at a time, linked into a program that runs.
fn built(client: &str) {
    say("a build");
    sh(&format!("mkdir {client}/program"));
    let dir = Path::new(client).join("program");
    let units = 16;
    let mut main = String::from("#include <stdio.h>\n");
    for n in 0..units {
        fs::write(dir.join(format!("u{n}.c")), format!("int u{n}(void) {{ return {n}; }}\n")).unwrap();
        main += &format!("int u{n}(void);\n");
    }
    let sum: String = (0..units).map(|n| format!(" + u{n}()")).collect();
    main += &format!("int main(void) {{ printf(\"%d\\n\", 0{sum}); return 0; }}\n");
    fs::write(dir.join("main.c"), main).unwrap();
    let makefile =
        "CC := gcc\nOBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\tgcc -o $@ $^\n";
    fs::write(dir.join("Makefile"), makefile).unwrap();
    sh(&format!("cd {} && make -j2", dir.display()));
    let output = sh(&format!("{}/program", dir.display()));
    assert_eq!(output.trim(), (0..units).sum::<u32>().to_string());
    assert!(sh(&format!("make -C {}", dir.display())).contains("up to date"));
    say("the program is built");
}
