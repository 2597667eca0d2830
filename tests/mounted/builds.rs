//! A large C build in the pool: OpenSSL's own, with its generated files, archives and dependencies.
//!
//! `cargo xtask test` builds a part (some 80 compilation units); `--tier long` all thousand, and then links and runs the
//! library made in the pool.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fsstack_lab::shell::command;
use fsstack_lab::{self as lab, Pool, Skip, needs};

use crate::script::sh;

/// The sources, downloaded by `cargo xtask test` from the registry.
fn sources() -> Result<PathBuf, Skip> {
    // This program is <target>/<profile>/deps/mounted-*.
    let me = std::env::current_exe().unwrap();
    let sources = me.ancestors().nth(3).unwrap().join("suites/sources/vendor/openssl-src/openssl");
    let missing =
        || Skip::because("needs OpenSSL's sources, which `cargo xtask test` takes from the registry");
    if sources.join("Configure").is_file() { Ok(sources) } else { Err(missing()) }
}

/// Builds `targets` in a pool that spreads the files.
fn build(sources: &Path, targets: &str, limit: Duration) -> Pool {
    let mut pool = lab::pool()
        .tmp_branch("a")
        .tmp_branch("b")
        .tmp_branch("c")
        .option("create=rand")
        .limit(limit)
        .mount();
    // `no-legacy`, `no-module`: the published sources lack parts of those.
    let script = format!(
        "cp -r {} src; cd src
         ./Configure linux-x86_64 -O0 no-asm no-shared no-module no-legacy no-tests no-docs no-apps no-engine no-dso
         make -s -j2 build_generated; make -s -j2 {targets}; make -q {targets}",
        sources.display()
    );
    command("bash").args(["-euc", &script]).dir(pool.path()).limit(limit).run().unwrap();
    // Times are unchanged by a remount: nothing is rebuilt.
    pool.remount();
    sh(pool.at("src"), &format!("make -q {targets}"));
    pool
}

/// A library.
const PART: &str = "libssl.a";

#[test]
fn a_library_builds_with_two_jobs() {
    // `prove` is in the full perl package, which the build's configuration needs.
    needs!(mounting(), program("gcc"), program("make"), program("prove"));
    let sources = match sources() {
        Ok(sources) => sources,
        Err(skip) => return skip.announce(),
    };
    let pool = build(&sources, PART, Duration::from_secs(330));
    let objects: u32 = sh(pool.path(), "find src -name '*.o' | wc -l").parse().unwrap();
    assert!(50 < objects, "{objects} objects");
}

#[test]
#[ignore = "minutes: cargo xtask test --tier long"]
fn a_thousand_units_build_and_what_was_built_runs() {
    needs!(mounting(), program("gcc"), program("make"), program("prove"));
    let sources = match sources() {
        Ok(sources) => sources,
        Err(skip) => return skip.announce(),
    };
    let pool = build(&sources, "build_libs_nodep", Duration::from_secs(1500));
    let objects: u32 = sh(pool.path(), "find src -name '*.o' | wc -l").parse().unwrap();
    assert!(1000 < objects, "{objects} objects");
    let program = r#"
      printf '%s\n' '#include <openssl/evp.h>' '#include <stdio.h>' \
        'int main(void) { unsigned char out[32]; unsigned n; EVP_Digest("abc", 3, out, &n, EVP_sha256(), 0);' \
        '  for (unsigned i = 0; i < n; i++) printf("%02x", out[i]); return 0; }' > digest.c
      gcc -Isrc/include -o digest digest.c src/libcrypto.a -ldl -lpthread; ./digest; echo; printf abc | sha256sum | cut -d' ' -f1"#;
    let output = sh(pool.path(), program);
    let (ours, known) = output.split_once('\n').unwrap();
    assert_eq!(ours, known);
}
