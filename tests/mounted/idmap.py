"""Idmapped mounts, and what callers get by them.

bind SOURCE TARGET MAP...   an idmapped bind mount; a map is INSIDE:OUTSIDE:COUNT, of users and groups
scene DIR DISK              does as several users what programs do, in DIR; prints every result, and what DISK has then
"""
import ctypes, errno, os, socket, stat, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(name, *args):
    numbers = {"open_tree": 428, "move_mount": 429, "mount_setattr": 442}
    done = libc.syscall(numbers[name], *args)
    if done < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return done


def user_namespace(maps):
    """A descriptor of a user namespace with these maps."""
    ready, begun = os.pipe()
    end, kept = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(kept)
        if libc.unshare(0x10000000) != 0:
            os._exit(1)
        os.write(begun, b"x")
        os.read(end, 1)
        os._exit(0)
    os.read(ready, 1)
    text = "".join("%s %s %s\n" % tuple(m.split(":")) for m in maps)
    for file in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{file}", "w") as opened:
            opened.write(text)
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.close(kept)
    os.waitpid(child, 0)
    return namespace


def bind(source, target, maps):
    class Attr(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in ("set", "clear", "propagation", "userns")]

    tree = call("open_tree", -100, source.encode(), 1 | os.O_CLOEXEC)
    attr = Attr(0x100000, 0, 0, user_namespace(maps))
    call("mount_setattr", tree, b"", 0x1000, ctypes.byref(attr), 32)
    call("move_mount", tree, b"", -100, target.encode(), 4)


def result(work):
    try:
        said = work()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok" if said is None else str(said)


def by(user, group, groups, works):
    """Names and results of works in a process of that user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        os.umask(0o022)
        with os.fdopen(writing, "w") as to:
            to.writelines(f"{name}: {result(work)}\n" for name, work in works)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = said.read().splitlines()
    os.waitpid(child, 0)
    return lines


def make(path, mode=0o666):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def tmpfile(path, name):
    fd = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"unnamed")
    found = os.fstat(fd)
    if libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, name.encode(), 0x400) != 0:
        raise OSError(ctypes.get_errno(), "linkat")
    return f"{found.st_uid}:{found.st_gid}"


def acl(*entries):
    """A POSIX ACL as its attribute; an entry is tag, permissions and id."""
    body = b"".join(tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + (id_ & 0xFFFFFFFF).to_bytes(4, "little")
                    for tag, perm, id_ in entries)
    return b"\x02\0\0\0" + body


def for_user(user):
    return acl((1, 6, -1), (2, 4, user), (4, 0, -1), (16, 4, -1), (32, 0, -1))


def append(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"more")
    os.close(fd)


def through(path, flags, work):
    fd = os.open(path, flags)
    try:
        return work(fd)
    finally:
        os.close(fd)


def seen(path):
    found = os.lstat(path)
    return f"{stat.S_IMODE(found.st_mode):o} {found.st_uid}:{found.st_gid}"


ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def prepare(disk):
    """What is there before: made without a mapping."""
    def put(name, user, group, mode, is_dir=False):
        path = f"{disk}/{name}"
        os.mkdir(path) if is_dir else open(path, "w").write("some")
        os.chown(path, user, group)
        os.chmod(path, mode)

    put("open", 0, 0, 0o777, True)
    put("own", 1000, 1000, 0o755, True)
    put("gives", 1003, 100, 0o2770, True)
    put("strange", 3000, 3000, 0o644)
    put("owned", 1000, 1000, 0o600)
    put("other", 1001, 1001, 0o640)
    put("shared", 1001, 100, 0o660)
    put("setuid", 1001, 1001, 0o4777)
    put("setgid", 1001, 1001, 0o2777)
    put("program", 1000, 1000, 0o6755)
    put("locked", 0, 0, 0o600)
    os.setxattr(f"{disk}/owned", "trusted.note", b"x")
    os.mkdir(f"{disk}/inherits")
    os.chown(f"{disk}/inherits", 1000, 1000)
    os.setxattr(f"{disk}/inherits", DEFAULT, acl((1, 7, -1), (2, 7, 1001), (4, 5, -1), (16, 7, -1), (32, 0, -1)))


def acts(at, who):
    """Names and works: the same for each caller."""
    new = f"{at}/open/{who}"
    yield "create", lambda: make(f"{new}.file")
    yield "stat", lambda: seen(f"{new}.file")
    yield "mkdir", lambda: os.mkdir(f"{new}.dir")
    yield "symlink", lambda: os.symlink("x", f"{new}.symlink")
    yield "mknod", lambda: os.mknod(f"{new}.fifo", 0o644 | stat.S_IFIFO)
    yield "device", lambda: os.mknod(f"{new}.device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    yield "bind", lambda: socket.socket(socket.AF_UNIX).bind(f"{new}.socket")
    yield "tmpfile", lambda: tmpfile(f"{at}/open", f"{new}.tmpfile")
    yield "link", lambda: os.link(f"{new}.file", f"{new}.link")
    yield "link another's", lambda: os.link(f"{at}/owned", f"{new}.hard")
    yield "rename", lambda: os.rename(f"{new}.link", f"{new}.renamed")
    yield "create in own", lambda: make(f"{at}/own/{who}")
    yield "create by group", lambda: make(f"{at}/gives/{who}", 0o660)
    yield "mkdir by group", lambda: os.mkdir(f"{at}/gives/{who}.dir")
    yield "create by default ACL", lambda: make(f"{at}/inherits/{who}")
    yield "mkdir by default ACL", lambda: os.mkdir(f"{at}/inherits/{who}.dir")
    yield "read own", lambda: open(f"{at}/owned").read()
    yield "read another's", lambda: open(f"{at}/other").read()
    yield "write by group", lambda: append(f"{at}/shared")
    yield "read root's", lambda: open(f"{at}/locked").read()
    yield "stat strange", lambda: seen(f"{at}/strange")
    yield "append strange", lambda: append(f"{at}/strange")
    yield "chmod own", lambda: os.chmod(f"{at}/owned", 0o604)
    yield "chmod another's", lambda: os.chmod(f"{at}/other", 0o604)
    yield "chgrp to own group", lambda: os.chown(f"{at}/owned", -1, 200)
    yield "chgrp to no group of it", lambda: os.chown(f"{at}/owned", -1, 2005)
    yield "chown to a mapped user", lambda: os.chown(f"{new}.file", 2002, 2002)
    yield "chown to a user without", lambda: os.chown(f"{new}.file", 4444, -1)
    yield "stat chowned", lambda: seen(f"{new}.file")
    yield "ACL for a mapped user", lambda: os.setxattr(f"{at}/owned", ACCESS, for_user(2001))
    yield "ACL for a user without", lambda: os.setxattr(f"{at}/owned", ACCESS, for_user(4444))
    yield "read ACL", lambda: os.getxattr(f"{at}/owned", ACCESS).hex()
    yield "attribute", lambda: os.setxattr(f"{at}/owned", "user.note", who.encode())
    yield "names of attributes", lambda: sorted(os.listxattr(f"{at}/owned"))
    yield "root's attribute", lambda: os.getxattr(f"{at}/owned", "trusted.note")
    yield "times", lambda: os.utime(f"{at}/owned", (1, 1))
    yield "append to set-uid", lambda: append(f"{at}/setuid")
    yield "mode", lambda: seen(f"{at}/setuid")
    yield "truncate set-gid", lambda: os.truncate(f"{at}/setgid", 1)
    yield "mode", lambda: seen(f"{at}/setgid")
    yield "fallocate", lambda: through(f"{at}/setuid", os.O_WRONLY, lambda fd: os.posix_fallocate(fd, 0, 9000))
    yield "set-id of its own", lambda: os.chmod(f"{new}.tmpfile", 0o6755)
    yield "mode", lambda: seen(f"{new}.tmpfile")
    yield "remove another's", lambda: os.unlink(f"{at}/other")
    yield "remove", lambda: os.unlink(f"{new}.renamed")


def shown(root, top=""):
    for name in sorted(os.listdir(f"{root}/{top}")):
        path = f"{root}/{top}{name}"
        lines = [f"{top}{name} {seen(path)}"]
        for kind in (ACCESS, DEFAULT):
            try:
                lines.append(os.getxattr(path, kind, follow_symlinks=False).hex())
            except OSError:
                pass
        yield " ".join(lines)
        if os.path.isdir(path) and not os.path.islink(path):
            yield from shown(root, f"{top}{name}/")


CALLERS = [
    ("mapped", 2000, 2000, [200]),
    ("nowhere", 5000, 5000, [200]),
    ("identical", 1000, 1000, [100]),
    ("half", 2000, 5000, []),
    ("container", 100000, 100000, []),
    ("tenant", 101000, 101000, [100100]),
    ("root", 0, 0, []),
]


def scene(at, disk):
    for who, user, group, groups in CALLERS:
        prepare(disk)
        for line in by(user, group, groups, acts(at, who)):
            print(f"{who}: {line}")
        for line in shown(at):
            print(f"{who}: by the mount: {line}")
        for line in shown(disk):
            print(f"{who}: on the disk: {line}")
        for dir_, dirs, files in os.walk(at, topdown=False):
            for name in files + dirs:
                # By the disk: the caller's mount may not map root.
                path = disk + os.path.join(dir_, name)[len(at):]
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


if sys.argv[1] == "bind":
    bind(sys.argv[2], sys.argv[3], sys.argv[4:])
else:
    scene(sys.argv[2], sys.argv[3])
