//! Archiving tools copy a tree into a pool and back unchanged: rsync, cp, tar.

use fsstack_lab::{self as lab, MiB, Pool, needs};

use crate::script::{sh, ways};

/// A tree with all kinds of files and metadata.
const TREE: &str = r#"
mkdir -p tree/dir/deep tree/other; cd tree
head -c 300000 /dev/urandom > dir/bytes
echo text > dir/deep/text
ln dir/bytes other/linked
ln dir/deep/text dir/again
ln -s dir/bytes symbolic; ln -s gone dangling
mkfifo fifo; mknod device c 1 3
truncate -s 5M sparse; printf end | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
chown 1000:1001 dir/bytes; chmod 4755 dir/bytes; chmod 1777 other; chmod 0 symbolic 2>/dev/null || :
setfattr -n user.note -v kept dir/deep; setfattr -n user.note -v kept sparse; setfattr -n trusted.secret -v s dir/bytes
setfacl -m u:1234:rw,g:4321:r dir/deep/text; setfacl -d -m u:1234:rwx dir/deep
touch -d '2001-02-03 04:05:06.789012345' dir/deep/text sparse
touch -h -d '2002-02-03 04:05:06.123456789' symbolic
touch -h -d '2003-03-04 05:06:07.25' dangling fifo device dir/bytes
touch -d '1999-12-31 23:59:59.5' dir/deep dir other .
"#;

/// Properties that must be equal: type, mode, owner, size, times, hard links, ACLs, xattrs, content.
const LOOK: &str = r#"
find . -printf '%P %y %m %U %G %l %T@ ' -a \( -type d -printf '\n' -o -printf '%n %s\n' \) | sort
find . -type f | sort | xargs sha256sum
find . ! -type l | sort | xargs getfacl -n -p
find . \( -type f -o -type d \) | sort | xargs getfattr -d -m '^(user|trusted.secret)' 2>/dev/null
[ dir/bytes -ef other/linked ]; [ dir/deep/text -ef dir/again ]
"#;

fn home(pool: &Pool) -> std::path::PathBuf {
    pool.path().parent().unwrap().to_owned()
}

#[test]
fn rsync_brings_everything_there_and_back() {
    needs!(
        mounting(),
        program("rsync"),
        program("setfacl"),
        program("setfattr"),
        not_on_gluster("its root sees ACLs as trusted.SGI_ACL_FILE too")
    );
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").unmounted();
        pool.remount_with(&[&["create=rand"], way].concat());
        sh(home(&pool), TREE);
        let before = sh(home(&pool).join("tree"), LOOK);
        sh(home(&pool), "rsync -aHAX tree/ pool/ && rsync -aHAX pool/ back/");
        assert_eq!(sh(pool.path(), LOOK), before, "in the pool, {way:?}");
        assert_eq!(sh(home(&pool).join("back"), LOOK), before, "back again, {way:?}");
        let differs =
            "rsync -aHAXin --checksum --delete tree/ pool/; rsync -aHAXin --checksum --delete pool/ tree/";
        assert_eq!(sh(home(&pool), differs), "", "{way:?}");
    }
}

#[test]
fn tar_keeps_attributes_and_acls() {
    needs!(mounting(), program("tar"), program("setfacl"), program("setfattr"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=rand").mount();
    sh(home(&pool), TREE);
    let before = sh(home(&pool).join("tree"), LOOK);
    // A volume's time of change may change a moment later, also without a pool: tar reports that the file changed (1).
    let bears = if lab::test_bed::is_gluster() { "|| [ $? = 1 ]" } else { "" };
    let round = format!(
        "tar -C tree --xattrs --xattrs-include='*' --acls --sparse -cf in.tar .
         tar -C pool --xattrs --xattrs-include='*' --acls -xpf in.tar
         tar -C pool --xattrs --xattrs-include='*' --acls --sparse -cf pool/out.tar --exclude=out.tar . {bears}
         mkdir back; tar -C back --xattrs --xattrs-include='*' --acls -xpf pool/out.tar; rm pool/out.tar
         touch -r tree pool back"
    );
    sh(home(&pool), &round);
    assert_eq!(sh(pool.path(), LOOK), before);
    assert_eq!(sh(home(&pool).join("back"), LOOK), before);
}

#[test]
fn cp_keeps_everything_and_holes_stay_holes() {
    needs!(mounting(), program("setfacl"), program("setfattr"));
    for way in ways() {
        let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
        pool.remount_with(&[&["create=rand"], way].concat());
        sh(home(&pool), TREE);
        let before = sh(home(&pool).join("tree"), LOOK);
        sh(home(&pool), "cp -a --sparse=always tree/. pool/; cp -a --sparse=auto pool back");
        assert_eq!(sh(pool.path(), LOOK), before, "{way:?}");
        assert_eq!(sh(home(&pool).join("back"), LOOK), before, "{way:?}");
        let blocks = sh(home(&pool), "sync; stat -c %b pool/sparse back/sparse").replace('\n', " ");
        let small = blocks.split(' ').all(|count| count.parse::<u64>().unwrap() < 1000);
        assert!(small, "{way:?}: 5 MB with one block written took {blocks} blocks");
    }
}

#[test]
fn cp_with_reflinks_shares_blocks_on_one_branch_and_copies_across() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).option("create=rand").mount();
    let copies = "head -c 20M /dev/urandom > file
                  for i in $(seq 8); do cp --reflink=auto file copy$i; cmp file copy$i; done
                  echo changed | dd of=copy1 conv=notrunc status=none; ! cmp -s file copy1; cmp file copy2";
    sh(pool.path(), copies);
    assert_eq!(pool.list("").len(), 9);
}
