//! mergerfs's control file, asked and changed by clients that do what mergerfs's scripts do.

use std::fs;

use fsstack_lab::rival::Union;
use fsstack_lab::{self as lab, needs, until};

use crate::command::{at, output_of};
use crate::hung_branches::FrozenDaemon;
use crate::script::{log_with, python, refused_to_stranger, sh};

/// Beginning of each script below: `get`, `put`, and `no`, which names the errno.
const CLIENT: &str = "
import errno, os, shutil, stat, sys, time
F = os.path.join(os.getcwd(), '.mergerfs')
K = 'user.mergerfs.'
def get(key, path=F): return os.getxattr(path, K + key).decode()
def put(key, value): os.setxattr(F, K + key, value.encode())
def no(call, *given):
    try: call(*given)
    except OSError as e: return errno.errorcode[e.errno]
    return 'done'
def seen(path):
    # What changes on a branch shows after the timeouts.
    for _ in range(600):
        if os.path.exists(path): return path
        time.sleep(0.05)
    raise SystemExit(path + ' does not show')
def until(holds):
    for _ in range(600):
        try:
            if holds(): return True
        except OSError: pass
        time.sleep(0.05)
    return False
def copies(path): return get('allpaths', path).split('\\0')
def rights(path):
    s = os.stat(path); return s.st_mode, s.st_uid, s.st_gid
";

fn client(script: &str) -> String {
    format!("{CLIENT}{script}")
}

#[test]
fn the_control_file_has_the_size_of_the_pool() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mount();
    let size = |path: &std::path::Path| rustix::fs::statvfs(path).unwrap().f_blocks;
    assert_eq!(size(&pool.at(".mergerfs")), size(pool.path()));
}

#[test]
fn it_is_found_by_name_and_in_no_listing() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let said = python(
        pool.path(),
        &client(
            "os.mkdir('d'); open('f', 'w').close()
print(sorted(os.listdir('.')), [e.name for e in os.scandir('.') if e.name.startswith('.')])
s = os.stat(F); print(stat.S_ISREG(s.st_mode), oct(s.st_mode & 0o777), s.st_size, s.st_uid, s.st_nlink)
print(os.path.exists('d/.mergerfs'), os.path.exists('.mergerfsx'))
os.stat(F)
# It has no content, and its name is taken.
print(no(os.open, F, os.O_RDONLY), no(os.open, F, os.O_CREAT | os.O_EXCL | os.O_RDWR), no(os.mkdir, F), no(os.symlink, 'x', F))
print(no(os.chmod, F, 0o777), no(os.chown, F, 1, 1), no(os.truncate, F, 0), no(os.utime, F))
print(no(os.rename, F, 'x'), no(os.rename, 'f', F), no(os.link, F, 'x'), no(os.link, 'f', F), no(os.unlink, F))
print(sorted(os.listdir('.')))",
        ),
    );
    assert_eq!(
        said,
        "['d', 'f'] []\nTrue 0o644 0 0 1\nFalse False\nEPERM EEXIST EEXIST EEXIST\nEPERM EPERM EPERM EPERM\n\
         EPERM EPERM EPERM EEXIST EPERM\n['d', 'f']"
    );
}

#[test]
fn keys_are_read_and_set() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    let said = python(
        pool.path(),
        &client(
            "for name in os.listxattr(F): assert name.startswith(K) and (os.getxattr(F, name) or name == K + 'config'), name
print(get('minfreespace'), get('category.create'), get('func.mkdir'), get('category.search'), get('func.rename'))
put('minfreespace', '10M'); put('category.create', 'mfs'); put('cache.entry', '5'); put('moveonenospc', 'false')
print(get('minfreespace'), get('category.create'), get('func.mkdir'), get('cache.entry'), get('moveonenospc'))
put('category.search', 'ff'); put('link-cow', 'false'); print(get('link_cow'), get('link-cow'))
print(get('mount') == os.getcwd(), get('pid').isdigit(), get('version').startswith('fsstack-'))
for key, value in (('nosuch', '1'), ('minfreespace', 'much'), ('category.create', 'nope'), ('category.search', 'newest'),
                   ('version', '1'), ('threads', '9'), ('use_ino', 'true'), ('write-path', 'stacked')):
    print(key, no(put, key, value), end='; ')
print()
print(no(os.getxattr, F, K + 'nosuch'), no(os.getxattr, F, 'user.other'), no(os.setxattr, F, 'user.other', b'1'),
      no(os.removexattr, F, K + 'minfreespace'), no(os.getxattr, F, 'security.capability'))
os.setxattr(F, K + 'minfreespace', b'20M', os.XATTR_REPLACE)
print(no(os.setxattr, F, K + 'minfreespace', b'1G', os.XATTR_CREATE), get('minfreespace'),
      no(os.setxattr, F, K + 'nosuch', b'1', os.XATTR_CREATE), no(os.setxattr, F, K + 'nosuch', b'1', os.XATTR_REPLACE))",
        ),
    );
    assert_eq!(
        said,
        "4194304 ff ff ff epall\n10485760 mfs mfs 5 false\nfalse false\nTrue True True\n\
         nosuch ENODATA; minfreespace EINVAL; category.create EINVAL; category.search EINVAL; version EROFS; \
         threads EROFS; use_ino ENOTSUP; write-path ENODATA; \n\
         ENODATA ENODATA ENODATA ENODATA ENODATA\nEEXIST 20971520 ENODATA ENODATA"
    );
    // The operator's command sees the same.
    let at = super::command::at(&pool);
    assert!(super::command::output_of(&["get", &at, "create"]).contains("mfs"));
}

/// Keys of mergerfs 2.40 and 2.41 that older versions do not have.
#[test]
fn keys_of_newer_versions_are_read_and_set() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("create=ff").mount();
    let said = python(
        pool.path(),
        &client(
            "print(get('xattr'), get('allow-idmap'), get('kernel-permissions-check'), get('fuse-msg-size'),
      get('read-thread-count') == get('threads'), get('mountpoint') == get('mount'), get('config'))
put('xattr', 'passthrough'); put('passthrough.io', 'off'); print(get('passthrough.io'))
put('passthrough.io', 'rw'); print(get('passthrough.io'))
put('debug', 'true'); print(get('debug')); put('debug', 'false'); print(get('debug'))
for key, value in (('xattr', 'noattr'), ('passthrough.io', 'ro'), ('allow-idmap', 'true'), ('read-thread-count', '9'),
                   ('fuse-msg-size', '9'), ('branches-mount-timeout', '9'), ('posix-acl', 'true'), ('debug', 'x')):
    print(key, no(put, key, value), end='; ')",
        ),
    );
    assert_eq!(
        said,
        "passthrough false true 256 True True \noff\nrw\ntrue\nfalse\n\
         xattr EROFS; passthrough.io EINVAL; allow-idmap EROFS; read-thread-count EROFS; fuse-msg-size EROFS; \
         branches-mount-timeout EROFS; posix-acl ENOTSUP; debug EINVAL; "
    );
}

#[test]
fn each_refusal_is_in_the_log() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").unmounted();
    let log = pool.path().with_file_name("log");
    pool.remount_with(&[&format!("log={}", log.display())]);
    let said = python(
        pool.path(),
        &client("print(no(put, 'nosuch', '1'), no(put, 'posix-acl', 'true'), no(put, 'version', '1'))"),
    );
    assert_eq!(said, "ENODATA ENOTSUP EROFS");
    for refused in
        ["nosuch=1 refused: no such key", "posix-acl=true refused: ACLs", "version=1 refused: it is settled"]
    {
        log_with(&log, &format!("control file: {refused}"));
    }
}

/// A list that a script writes back has to keep floors.
#[test]
fn branches_are_told_with_their_floors() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mode("RW,1G").tmp_branch("b").mode("NC").mount();
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path().display().to_string());
    let told = python(pool.path(), &client("print(get('branches')); print(get('srcmounts'))"));
    assert_eq!(told, format!("{a}=RW,1G:{b}=NC\n{a}:{b}"));
    let told = "put('statfs_ignore', 'nc'); print(get('statfs_ignore')); put('statfs_ignore', 'ro'); print(get('statfs_ignore'))";
    assert_eq!(python(pool.path(), &client(told)), "nc\nro");
}

#[test]
fn branches_are_added_and_removed() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let more = pool.path().parent().unwrap().join("more");
    fs::create_dir(&more).unwrap();
    fs::write(more.join("film"), "x").unwrap();
    std::os::unix::fs::symlink(pool.path(), pool.path().parent().unwrap().join("link")).unwrap();
    let said = python(
        pool.path(),
        &client(&format!(
            "more = {more:?}
before = get('srcmounts')
assert get('branches') == ':'.join(b + '=RW' for b in before.split(':'))
put('srcmounts', '+' + more); print(get('srcmounts') == before + ':' + more, os.path.exists('film'))
print(get('basepath', 'film') == more, get('relpath', 'film'), get('allpaths', 'film') == more + '/film')
put('srcmounts', '-' + more); print(get('srcmounts') == before, os.path.exists('film'))
put('branches', '+>' + more + '=RO'); print(get('branches').endswith(more + '=RO'))
held = open('film'); print(no(put, 'branches', '-' + more)); held.close()
for value in ('+/no/such', '-/no/such', '+' + os.getcwd() + '/d', '+' + os.getcwd(), '+' + os.path.dirname(more) + '/link', more, '+<' + more, '->', '', '='):
    print(no(put, 'srcmounts', value), end=' ')
print('end')"
        )),
    );
    assert_eq!(
        said,
        "True True\nTrue /film True\nTrue False\nTrue\nEBUSY\n\
         ENOENT ENOENT EINVAL EINVAL EINVAL ENOTSUP ENOTSUP ENOTSUP ENOTSUP ENOTSUP end"
    );
}

#[test]
fn only_the_operator_sets_a_key() {
    needs!(mounting(), program("unshare"), program("capsh"), program("setfattr"), program("getfattr"));
    let pool = lab::pool().tmp_branch("a").mount();
    let get = "getfattr --only-values --absolute-names -n user.mergerfs.minfreespace .mergerfs";
    let set = "setfattr -n user.mergerfs.minfreespace -v 1G .mergerfs";
    let denied = refused_to_stranger(pool.path(), set);
    assert!(denied.contains("Permission denied"), "{denied}");
    for not_the_operator in [
        // Root of a container is no administrator of the machine.
        format!("capsh --drop=cap_sys_admin -- -c '{set}'"),
        format!("unshare --user --map-root-user {set}"),
    ] {
        let denied = crate::script::refused(pool.path(), &not_the_operator);
        assert!(denied.contains("not permitted"), "{denied}");
    }
    assert_eq!(sh(pool.path(), get), "4194304");
    // In a mount namespace of its own, as a service with private directories is.
    sh(pool.path(), &format!("unshare --mount {set}"));
    assert_eq!(sh(pool.path(), get), (1_u64 << 30).to_string());
}

#[test]
fn nobody_sets_a_key_where_the_mount_says_so_or_clients_act_as_root() {
    needs!(mounting());
    for option in ["mergerfs-control=read", "nfs-export"] {
        let pool = lab::pool().tmp_branch("a").option(option).mount();
        let said = python(pool.path(), &client("print(get('minfreespace'), no(put, 'minfreespace', '1G'))"));
        assert_eq!(said, "4194304 EROFS", "{option}");
    }
}

#[test]
fn a_branchs_own_file_of_the_name_is_hidden_unless_it_is_switched_off() {
    needs!(mounting());
    let mut pool = lab::pool().tmp_branch("a").tmp_branch("b").unmounted();
    fs::write(pool.branch("b").path().join(".mergerfs"), "own").unwrap();
    let log = pool.path().with_file_name("log");
    let to_file = format!("log={}", log.display());
    pool.remount_with(&[&to_file]);
    log_with(&log, ".mergerfs is hidden by the pool's control file");
    let said = python(pool.path(), &client("print(os.listdir('.'), os.stat(F).st_size, no(os.unlink, F))"));
    assert_eq!(said, "[] 0 EPERM");
    assert_eq!(fs::read(pool.branch("b").path().join(".mergerfs")).unwrap(), b"own");
    pool.remount_with(&["mergerfs-control=off"]);
    let said = python(
        pool.path(),
        &client(
            "print(os.listdir('.'), open(F).read(), no(os.getxattr, F, K + 'version'))
os.setxattr(F, K + 'version', b'mine'); print(get('version'))
os.rename(F, 'kept'); open(F, 'w').write('new'); print(sorted(os.listdir('.')))",
        ),
    );
    assert_eq!(said, "['.mergerfs'] own ENODATA\nmine\n['.mergerfs', 'kept']");
}

/// The rounds of mergerfs.balance, .dedup and .fsck: which branches there are and where each file is comes from the pool, and the
/// branches are changed directly.
#[test]
fn scripts_for_mergerfs_find_and_move_files() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c").option("create=ff");
    let pool = pool.no_others().mount();
    let said = python(
        pool.path(),
        &client(
            "def control(at):
    file = os.path.join(at, '.mergerfs')
    return file if os.path.exists(file) else control(os.path.dirname(at))
os.makedirs('films/old'); open('films/old/one', 'w').write('1'); open('films/two', 'w').write('2')
found = control(os.path.join(os.getcwd(), 'films/old')); print(found == F)
branches = os.getxattr(found, K + 'srcmounts').decode().split(':'); print(len(branches))
# balance: a file leaves the fullest branch for the roomiest.
src, dst = get('fullpath', 'films/old/one'), None
dst = os.path.join(branches[1], get('relpath', 'films/old/one').lstrip('/'))
os.makedirs(os.path.dirname(dst)); shutil.copy2(src, dst + '.tmp'); os.rename(dst + '.tmp', dst); os.unlink(src)
print(open(seen('films/old/one')).read(), get('basepath', 'films/old/one') == branches[1])
# A second copy; allpaths has both.
relative = get('relpath', 'films/two')
os.makedirs(branches[2] + '/films'); shutil.copy2(get('fullpath', 'films/two'), branches[2] + relative)
print(until(lambda: [len(copies(path)) for path in ('films', 'films/old', 'films/two')] == [3, 2, 2]))
print([p[:-len(relative)] == b for p, b in zip(copies('films/two'), (branches[0], branches[2]))])
# fsck: of files and directories alike, the owner and mode that differ between the copies are set on all.
def differ():
    paths = [os.path.join(where, name) for where, _, names in os.walk('films') for name in [''] + names]
    paths = [path.rstrip('/') for path in paths]
    return sorted(path for path in paths if len({rights(copy) for copy in copies(path)}) > 1)
print(differ())
for path, mode in ((branches[2] + relative, 0o600), (branches[1] + '/films', 0o2770), (branches[1] + '/films/old', 0o700)):
    os.chown(path, 1234, 1235); os.chmod(path, mode)
wrong = differ(); print(wrong)
for path in wrong:
    mode, uid, gid = rights(copies(path)[0])
    for copy in copies(path): os.chmod(copy, mode); os.chown(copy, uid, gid)
print(differ(), all(rights(path) == rights(copies(path)[0]) for path in wrong))
# dedup: the copies but one go.
paths = copies('films/two')
for path in paths[1:]: os.remove(path)
print(get('allpaths', 'films/two').split('\\0') == paths[:1], open('films/two').read())
for where, _, names in os.walk('.'):
    for name in names: assert get('allpaths', os.path.join(where, name)).startswith('/')",
        ),
    );
    assert_eq!(
        said,
        "True\n3\n1 True\nTrue\n[True, True]\n[]\n['films', 'films/old', 'films/two']\n[] True\nTrue 2"
    );
}

/// The commands of mergerfs.dup and mergerfs.consolidate, with the options that they give to rsync.
#[test]
fn rsync_of_mergerfs_tools_copies_and_moves_files_between_the_branches() {
    needs!(mounting(), program("rsync"), not_on_gluster("its volumes have attributes of their own"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").tmp_branch("c").option("create=ff");
    let mut pool = pool.no_others().mount();
    let said = python(
        pool.path(),
        &client(
            "import subprocess
def rsync(source, target, path, *more):
    relative = get('relpath', path).lstrip('/')
    options = ['-avHAXWE', '--numeric-ids', '--progress', '--relative', *more]
    subprocess.run(['rsync', *options, os.path.join(source, './', relative), target + '/'], check=True, stdout=sys.stderr)
def traits(path):
    s = os.lstat(path); return *rights(path), s.st_size, s.st_mtime_ns, os.getxattr(path, 'user.of')
names = ['films/one', 'films/old/two']
branches = get('srcmounts').split(':')
os.makedirs('films/old')
for name in names:
    open(name, 'w').write(name); os.chown(name, 1234, 1235); os.chmod(name, 0o640)
    os.setxattr(name, 'user.of', name.encode()); os.utime(name, (10**9, 10**9))
os.chown('films', 1234, 1235); os.chmod('films', 0o2770)
before = [traits(name) for name in names]
# dup: a copy of each on another branch.
for name in names: rsync(get('basepath', name), branches[2], name)
print(until(lambda: all(len(copies(name)) == 2 for name in ['films', 'films/old', *names])))
print([[traits(copy) for copy in copies(name)] for name in names] == [[was, was] for was in before])
print(len({rights(copy) for copy in ['films', *copies('films')]}), [traits(name) for name in names] == before)
print(sorted(os.listdir('films')), os.listdir('films/old'))
# Again, over what is there, after a change in the pool.
open('films/one', 'a').write('+')
rsync(get('basepath', 'films/one'), branches[2], 'films/one')
print([open(copy).read() for copy in copies('films/one')])
# --prune: rm of the copies above the count.
for name in names:
    for copy in copies(name)[1:]: os.remove(copy)
# consolidate: what lies on other branches moves to one.
for name in names: rsync(get('basepath', name), branches[1], name, '-S', '--remove-source-files')
print(until(lambda: [open(name).read() for name in names] == ['films/one+', 'films/old/two']))
print([copies(name) == [branches[1] + '/' + name] and get('basepath', name) == branches[1] for name in names])
print(sorted(os.listdir('films')), traits(names[1]) == before[1])",
        ),
    );
    let lists = "['old', 'one'] ['two']";
    assert_eq!(
        said,
        format!(
            "True\nTrue\n1 True\n{lists}\n['films/one+', 'films/one+']\nTrue\n[True, True]\n['old', 'one'] True"
        )
    );
    assert_eq!((pool.holders("films/one"), pool.holders("films/old/two")), (vec!["b"], vec!["b"]));
    pool.remount();
    assert_eq!(pool.read("films/one"), b"films/one+");
    assert_eq!(pool.read("films/old/two"), b"films/old/two");
}

/// mergerfs.ctl takes the mounts of this type, by the one table or, in later versions, the other.
#[test]
fn mergerfs_ctl_finds_a_pool_with_the_subtype_mergerfs() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").option("subtype=mergerfs");
    let pool = pool.no_others().mount();
    let more = pool.path().with_file_name("more");
    fs::create_dir(&more).unwrap();
    fs::write(more.join("film"), "x").unwrap();
    let said = python(
        pool.path(),
        &client(&format!(
            "def rows(table): return [line.split() for line in open('/proc/' + table)]
mounts = [row[1] for row in rows('mounts') if row[2] == 'fuse.mergerfs']
wholes = [row[4] for row in rows('self/mountinfo') if row[row.index('-', 6) + 1] == 'fuse.mergerfs' and row[3] == '/']
pool = os.getcwd(); print(mounts.count(pool), wholes.count(pool))
# info
print(get('version').startswith('fsstack-'), get('pid'), get('srcmounts').split(':'))
# list values: each is text.
print(all(isinstance(os.getxattr(F, key).decode(), str) for key in os.listxattr(F)))
# get and set
put('category.create', 'mfs'); print(get('category.create')); print(no(put, 'nosuch', '1'))
# add path, remove path
put('srcmounts', '+' + {more:?}); print(get('srcmounts').split(':')[2:], open(seen('film')).read())
print(until(lambda: not put('srcmounts', '-' + {more:?})), len(get('srcmounts').split(':')), os.path.exists('film'))"
        )),
    );
    let [a, b] = ["a", "b"].map(|name| pool.branch(name).path().display().to_string());
    let (pid, more) = (pool.daemon().pid, more.display());
    let info = format!("1 1\nTrue {pid} ['{a}', '{b}']");
    assert_eq!(said, format!("{info}\nTrue\nmfs\nENODATA\n['{more}'] x\nTrue 2 False"));
}

#[test]
fn what_mergerfs_answers_is_answered_alike() {
    needs!(mounting(), program("mergerfs"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("create=ff").mount();
    let rival = pool.rival(Union::Mergerfs, &["minfreespace=4M", "category.create=ff", "use_ino"]).unwrap();
    // Outcomes in which the two agree; how they differ stands in docs/migrate.md.
    let asked = client(
        "open(sys.argv[1], 'w').close()
for key in ('srcmounts', 'branches', 'minfreespace', 'category.create', 'category.search', 'category.action', 'func.mkdir',
            'cache.entry', 'cache.writeback', 'nullrw', 'symlinkify', 'link_cow', 'statfs', 'statfs_ignore'):
    print(key, get(key))
for key in ('basepath', 'relpath', 'fullpath', 'allpaths'): print(get(key, sys.argv[1]))
print(get('basepath', '.'), get('relpath', '.'))
print(no(os.getxattr, F, K + 'nosuch'), no(put, 'nosuch', '1'), no(os.setxattr, F, 'user.other', b'1'))
print(no(put, 'minfreespace', 'junk'), no(put, 'cache.entry', 'x'), no(put, 'version', '1'), no(put, 'pid', '1'))
put('minfreespace', '10M'); print(get('minfreespace')); put('category.create', 'mfs'); print(get('func.create'))
put('moveonenospc', 'pfrd'); print(get('moveonenospc')); put('moveonenospc', 'false'); print(get('moveonenospc'))
print(set(os.listxattr(F)) & {K + 'version', K + 'pid', K + 'srcmounts', K + 'minfreespace'} == {K + 'version', K + 'pid', K + 'srcmounts', K + 'minfreespace'})
os.unlink(sys.argv[1])",
    );
    let told = |at: &std::path::Path| {
        let run = lab::shell::command("python3").args(["-c", &asked, "probe"]).dir(at);
        run.run().unwrap().stdout
    };
    let theirs = told(rival.path());
    rival.unmount().unwrap();
    assert_eq!(told(pool.path()), theirs);
}

/// The config file of a change may be on a disk that hangs. Any user may read the settings meanwhile.
#[test]
fn a_change_whose_config_file_hangs_holds_up_no_program() {
    needs!(mounting());
    let disk = lab::pool().tmp_branch("disk").mount();
    let file = disk.at("pool.toml");
    fs::write(&file, "").unwrap();
    let pool =
        lab::pool().tmp_branch("a").tmp_branch("b").option(&format!("config={}", file.display())).mount();
    let target = at(&pool);
    let daemon = pool.daemon().pid;
    let frozen = FrozenDaemon::new(disk.daemon());
    std::thread::scope(|scope| {
        let change = scope.spawn(|| output_of(&["set", &target, "create=mfs", "--persist"]));
        until("the daemon to wait for its config file", || {
            let tasks = fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
            let mut waits_in = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("wchan")));
            waits_in.any(|at| at.is_ok_and(|at| at.contains("request_wait_answer")))
        });
        let said = python(pool.path(), &client("print(get('category.create'), get('minfreespace') != '')"));
        assert!(said.trim_end().ends_with(" True") && !said.starts_with("mfs"), "{said}");
        output_of(&["status", &target]);
        drop(frozen);
        change.join().unwrap();
    });
    assert_eq!(output_of(&["get", &target, "create"]), "mfs\n");
    assert!(fs::read_to_string(&file).unwrap().contains("mfs"));
}
