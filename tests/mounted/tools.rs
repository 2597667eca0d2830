//! Common programs in a pool: find, du, df, dd, fuser, inotifywait, git, make.

use fsstack_lab::{self as lab, MiB, needs};

use crate::script::{python, sh, ways};

#[test]
fn find_sees_types_links_and_numbers_as_stat_does() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    sh(
        pool.path(),
        "for d in 1 2 3; do mkdir $d; for f in $(seq 20); do echo $f > $d/$f; done; ln -s x $d/s; mkfifo $d/p; done",
    );
    assert_eq!(
        sh(pool.path(), "find . -type f | wc -l; find . -type l | wc -l; find . -type p | wc -l"),
        "60\n3\n3"
    );
    assert_eq!(sh(pool.path(), "find . -name 1? -newer 1/1 -o -size +1 -type f | sort | uniq -d"), "");
    // The number in a listing is the file's; programs do not skip subdirectories because of a wrong link count.
    let same = "import os
for where, dirs, files in os.walk('.'):
    for entry in os.scandir(where):
        assert entry.inode() == os.lstat(entry.path).st_ino, entry.path
print(len({os.lstat(os.path.join(w, f)).st_ino for w, _, fs in os.walk('.') for f in fs}))";
    assert_eq!(python(pool.path(), same), "66");
}

#[test]
fn du_counts_what_the_branches_hold_once() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=rand").mount();
    sh(
        pool.path(),
        "mkdir d; for i in $(seq 10); do head -c 1M /dev/urandom > d/$i; done; ln d/1 d/linked; sync",
    );
    let reply: u64 = sh(pool.path(), "du -sk d | cut -f1").parse().unwrap();
    assert!((10 * 1024..10 * 1024 + 200).contains(&reply), "{reply} KiB");
    assert_eq!(sh(pool.path(), "du -s --apparent-size -B1 d/1 | cut -f1"), (1 << 20).to_string());
}

#[test]
fn df_sums_distinct_file_systems_once() {
    needs!(mounting(), not_on_gluster("its volumes share their disks"));
    let pool = lab::pool().tmpfs_branch("a", MiB(16)).tmpfs_branch("b", MiB(32)).mount();
    assert_eq!(sh(pool.path(), "df -B1M --output=size . | tail -1").trim(), "48");
    let plain = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let one = sh(plain.branch("a").path(), "df -B1 --output=size . | tail -1");
    assert_eq!(sh(plain.path(), "df -B1 --output=size . | tail -1").trim(), one.trim());
    assert!(sh(plain.path(), "df --output=itotal . | tail -1").trim() != "0");
    assert_eq!(sh(plain.path(), "stat -f -c %l ."), "255");
}

/// Runs the shell script `script` in a pool of one disk, by each write path with each page cache mode.
#[track_caller]
fn in_each_way(script: &str) {
    for way in ways() {
        let mut pool = lab::pool().xfs_branch("a", MiB(300)).unmounted();
        pool.remount_with(way);
        sh(pool.path(), script);
    }
}

#[test]
fn dd_writes_direct_appending_and_synchronous() {
    needs!(mounting(), loops());
    in_each_way(
            "head -c 3M /dev/urandom > model
             dd if=model of=direct bs=64K oflag=direct status=none; cmp model direct
             dd if=direct of=back bs=64K iflag=direct status=none; cmp model back
             dd if=model of=sync bs=256K oflag=sync status=none; cmp model sync
             dd if=model of=dsync bs=256K oflag=dsync status=none; cmp model dsync
             dd if=model of=fsynced bs=1M conv=fsync status=none; cmp model fsynced
             head -c 1M model > parts; tail -c 2M model | dd of=parts bs=4097 oflag=append conv=notrunc status=none
             cmp model parts; sync; sync -f .",
    );
}

/// The kernel sends each write as several requests, without waiting for their answers.
#[test]
fn large_direct_appends_keep_their_order() {
    needs!(mounting(), loops());
    in_each_way(
        "seq 9000000 > model; truncate -s 64M model; : > appended
             dd if=model of=appended bs=16M oflag=append,direct conv=notrunc status=none; cmp model appended",
    );
}

/// A write that clears a set-id bit goes past the pages that the kernel writes later, and so does a direct one.
#[test]
fn appends_past_pages_that_are_written_later_go_to_the_end() {
    needs!(mounting(), loops(), program("python3"));
    in_each_way(
        "python3 - <<'EOF'
import os
fd = os.open('file', os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.fchmod(fd, 0o4777)
for byte in b'ab':
    os.write(fd, bytes([byte]) * 3000)
if os.fork() == 0:
    os.setuid(65534)
    os.write(fd, b'c' * 3000)
    os._exit(0)
os.wait()
os.write(fd, b'd' * 3000)
os.system('dd if=/dev/zero of=file bs=4096 count=1 oflag=append,direct conv=notrunc status=none')
os.write(fd, b'e' * 3000)
os.close(fd)
found = open('file', 'rb').read()
assert found == b''.join(bytes([byte]) * 3000 for byte in b'abcd') + bytes(4096) + b'e' * 3000, len(found)
EOF",
    );
}

#[test]
fn two_programs_append_to_one_file_and_no_line_is_lost() {
    needs!(mounting());
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").unmounted();
        pool.remount_with(way);
        let lines = "for w in 1 2 3; do (for i in $(seq 300); do echo $w-$i; done >> log) & done; wait
                     sort -u log | wc -l; wc -l < log";
        assert_eq!(sh(pool.path(), lines), "900\n900", "{way:?}");
    }
}

#[test]
fn fuser_finds_the_users_of_a_file() {
    needs!(mounting(), program("fuser"));
    let pool = lab::pool().tmp_branch("a").mount();
    let found =
        sh(pool.path(), "echo x > file; exec 7< file; fuser file 2>/dev/null | tr -d ' '; echo; echo $$");
    let (holder, me) = found.split_once('\n').unwrap();
    assert!(holder.contains(me.trim()), "{found}");
}

#[test]
fn inotify_tells_of_what_happens_on_the_mount() {
    needs!(mounting(), program("inotifywait"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let watch = r#"
      mkdir d; inotifywait -m -q -e create,close_write,moved_from,moved_to,delete,attrib --format '%e %f' d > ../seen 2>../said &
      watcher=$!; sleep 0.5
      echo x > d/file; chmod 600 d/file; mv d/file d/moved; rm d/moved; sleep 0.3
      kill $watcher; cut -d' ' -f1,2 ../seen | grep -v '^DELETE_SELF'"#;
    let seen = sh(pool.path(), watch);
    for event in [
        "CREATE file",
        "CLOSE_WRITE,CLOSE file",
        "ATTRIB file",
        "MOVED_FROM file",
        "MOVED_TO moved",
        "DELETE moved",
    ] {
        assert!(seen.lines().any(|line| line == event), "{event} is missing in:\n{seen}");
    }
}

#[test]
fn git_works_and_its_store_is_sound() {
    needs!(mounting(), program("git"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let work = r#"
      export HOME=$PWD/.. GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e@x GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e@x
      git init -q -b main repo; cd repo
      for d in 1 2 3 4; do mkdir $d; for f in $(seq 25); do echo $d $f > $d/$f; done; done
      git add .; git commit -q -m first; git status --porcelain
      git checkout -q -b side; git mv 1 renamed; echo more >> 2/1; git commit -q -a -m second
      git checkout -q main; git merge -q side; git gc -q; git fsck --strict 2>&1 | grep -v '^notice' || :
      cd ..; git clone -q repo clone; git -C clone fsck --strict 2>&1 | grep -v '^notice' || :
      diff -r --exclude=.git repo clone; git -C clone log --oneline | wc -l; git -C clone status --porcelain"#;
    assert_eq!(sh(pool.path(), work), "2");
}

#[test]
fn make_builds_a_program_with_two_jobs() {
    needs!(mounting(), program("gcc"), program("make"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    let build = r#"
      for i in $(seq 12); do echo "int f$i(void) { return $i; }" > f$i.c; done
      { for i in $(seq 12); do echo "int f$i(void);"; done; echo '#include <stdio.h>'; echo 'int main(void) { printf("%d\n", 0'
        for i in $(seq 12); do echo " + f$i()"; done; echo '); return 0; }'; } > main.c
      printf 'all: sum\nsum: main.o %s\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -c -o $@ $<\n' "$(for i in $(seq 12); do printf 'f%d.o ' $i; done)" > Makefile
      make -s -j2; ./sum; make -q; sleep 0.01; touch f3.c; ! make -q; make -s -j2; ./sum"#;
    assert_eq!(sh(pool.path(), build), "78\n78");
}
