//! The programs of the figures (`--only programs`) in a tiny tree: each leaves and prints what it does on a branch.

use fsstack_lab::programs::{self, Archive, PROGRAMS};
use fsstack_lab::{self as lab, Pool, needs};

/// Files of the tree: ten directories and a part of another unit.
const FILES: usize = 220;

#[test]
fn each_program_leaves_and_prints_what_it_does_on_the_branch() {
    needs!(mounting(), program("git"), program("rsync"));
    let archive = Archive::of(FILES).unwrap();
    for options in [&[][..], &["out-of-band=never"], &["out-of-band=never", "xattr=off"]] {
        let mut builder = lab::pool().tmp_branch("a").tmp_branch("b");
        for option in options {
            builder = builder.option(option);
        }
        agrees(&archive, &builder.mount(), options);
    }
}

fn agrees(archive: &Archive, pool: &Pool, options: &[&str]) {
    let plain = pool.path().parent().unwrap().join("plain");
    std::fs::create_dir(&plain).unwrap();
    for program in PROGRAMS {
        let [here, there] = [pool.path(), &plain].map(|at| archive.run(*program, at).unwrap());
        if program.is_comparable {
            assert_eq!(here.said, there.said, "{} with {options:?}", program.name);
        }
        programs::compare(pool.path(), &plain).unwrap();
        let trees = ["tree", "copy", "mirror"].map(|tree| plain.join(tree).exists());
        let expected = match program.name {
            "tar -x" | "find" | "du" | "grep -r" => [true, false, false],
            "cp -a" | "git init, add" | "git commit" | "git status" => [true, true, false],
            "rsync -a" => [true, true, true],
            _ => [false; 3],
        };
        assert_eq!(trees, expected, "after {}", program.name);
        match program.name {
            "find" => assert_eq!(here.said.len(), FILES),
            "grep -r" => assert_eq!(here.said.len(), FILES.div_ceil(50)),
            "git commit" => assert_eq!(here.said.len(), 1),
            _ => {}
        }
    }
}
